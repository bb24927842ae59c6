// Reads a topic as a member of a share group, until its input ends: a line for each record, once its acknowledgement
// has been sent and answered. Arguments: bootstrap addresses; group, which is the topic's name too. With a third
// argument it is a producer: see produce.go.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	failed := func(what string, err error) {
		fmt.Fprintln(os.Stderr, what, err)
		os.Exit(1)
	}
	if len(os.Args) > 3 {
		user, password := "", ""
		if len(os.Args) > 5 {
			user, password = os.Args[4], os.Args[5]
		}
		if err := produce(os.Args[1], os.Args[2], os.Args[3], user, password); err != nil {
			failed("produce:", err)
		}
		return
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(os.Args[1], ",")...),
		kgo.ShareGroup(os.Args[2]),
		kgo.ConsumeTopics(os.Args[2]),
		// Without it errors of acknowledgements are told nowhere.
		kgo.ShareAckCallback(func(_ *kgo.Client, results kgo.ShareAckResults) {
			if err := results.Error(); err != nil {
				fmt.Fprintln(os.Stderr, "acknowledgement:", err)
			}
		}),
	)
	if err != nil {
		failed("configuration:", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	for ctx.Err() == nil {
		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil {
			break
		}
		if err := fetches.Err(); err != nil {
			failed("fetch:", err)
		}
		records := fetches.Records()
		if len(records) == 0 {
			continue
		}
		client.MarkAcks(kgo.AckAccept, records...)
		if err := client.FlushAcks(ctx); err != nil && ctx.Err() == nil {
			failed("acknowledgements:", err)
		}
		for _, record := range records {
			fmt.Println(string(record.Value))
		}
	}
	client.LeaveGroup()
	client.Close()
}
