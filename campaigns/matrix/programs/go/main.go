// The steps of the matrix with the Go clients: go CLIENT BOOTSTRAP TOPIC STEP...
//
// Each step prints a line: its name, then "ok", "lacks" (the client has no such thing) or "failed" and why.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

const (
	records = 20
	aborted = "1000"
	last    = "2000"
)

type step func(ctx context.Context, bootstrap []string, topic string) error

var clients = map[string]map[string]step{
	"franz-go": franzGo,
	"sarama":   saramaSteps,
	"kafka-go": kafkaGo,
}

// A set of values that were read.
type found map[string]bool

func (f found) complete(wanted int) error {
	if len(f) < wanted {
		return fmt.Errorf("read %d of %d", len(f), wanted)
	}
	return nil
}

// What a reader of committed transactions found.
func (f found) committed() error {
	if f[aborted] || !f[last] {
		return fmt.Errorf("read %v", f)
	}
	return f.complete(records + 1)
}

// Brokers hear of a new topic a moment after its creator has the answer.
func eventually(ctx context.Context, do func() error) error {
	for {
		err := do()
		if err == nil || ctx.Err() != nil {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func value(number int) string {
	return strconv.Itoa(number)
}

func text(of string) *string {
	return &of
}

func main() {
	steps := clients[os.Args[1]]
	for _, name := range os.Args[4:] {
		do, has := steps[name]
		if !has {
			fmt.Println(name, "lacks")
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		err := do(ctx, strings.Split(os.Args[2], ","), os.Args[3])
		cancel()
		if err != nil {
			fmt.Println(name, "failed", strings.Join(strings.Fields(err.Error()), " "))
		} else {
			fmt.Println(name, "ok")
		}
	}
}
