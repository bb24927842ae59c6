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
	"github.com/twmb/franz-go/pkg/sasl/plain"
)

// Sends one record after the other by TLS, until the process is ended: a line for each that is acknowledged. With a
// user it logs in by PLAIN.
func produce(bootstrap, topic, ca, user, password string) error {
	trusted, err := os.ReadFile(ca)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(trusted)
	options := []kgo.Opt{
		kgo.SeedBrokers(strings.Split(bootstrap, ",")...),
		kgo.DialTLSConfig(&tls.Config{RootCAs: roots}),
	}
	if user != "" {
		options = append(options, kgo.SASL(plain.Auth{User: user, Pass: password}.AsMechanism()))
	}
	client, err := kgo.NewClient(options...)
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
