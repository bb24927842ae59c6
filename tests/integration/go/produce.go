package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Sends one record after the other by TLS, until the process is ended: a line for each that is acknowledged.
func produce(bootstrap, topic, ca string) error {
	trusted, err := os.ReadFile(ca)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(trusted)
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(bootstrap, ",")...),
		kgo.DialTLSConfig(&tls.Config{RootCAs: roots}),
	)
	if err != nil {
		return err
	}
	defer client.Close()
	for number := 0; ; number++ {
		record := &kgo.Record{Topic: topic, Partition: 0, Value: fmt.Appendf(nil, "franz-go %d", number)}
		if err := client.ProduceSync(context.Background(), record).FirstErr(); err != nil {
			return err
		}
		fmt.Println(number)
		time.Sleep(100 * time.Millisecond)
	}
}
