// The steps of the matrix with librdkafka 1.9, which this version of Confluent's Go client brings along:
// go_librdkafka BOOTSTRAP TOPIC STEP...
//
// Each step prints a line: its name, then "ok", "lacks" (the client has no such thing) or "failed" and why.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/confluentinc/confluent-kafka-go/kafka"
)

const (
	records  = 20
	aborted  = "1000"
	last     = "2000"
	withinMs = 60_000
)

var steps = map[string]func(bootstrap, topic string) error{
	"admin":        admin,
	"produce":      produce,
	"consume":      consume,
	"classic":      classic,
	"transactions": transactions,
}

func main() {
	for _, name := range os.Args[3:] {
		do, has := steps[name]
		if !has {
			fmt.Println(name, "lacks")
			continue
		}
		if err := do(os.Args[1], os.Args[2]); err != nil {
			fmt.Println(name, "failed", strings.Join(strings.Fields(err.Error()), " "))
		} else {
			fmt.Println(name, "ok")
		}
	}
}

func admin(bootstrap, topic string) error {
	client, err := kafka.NewAdminClient(&kafka.ConfigMap{"bootstrap.servers": bootstrap})
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	name := topic + "-admin"
	failure := func(results []kafka.TopicResult, err error) error {
		if err != nil {
			return err
		}
		if code := results[0].Error.Code(); code != kafka.ErrNoError {
			return results[0].Error
		}
		return nil
	}
	if err := failure(client.CreateTopics(ctx, []kafka.TopicSpecification{{Topic: name, NumPartitions: 1, ReplicationFactor: 1}})); err != nil {
		return err
	}
	if err := failure(client.CreatePartitions(ctx, []kafka.PartitionsSpecification{{Topic: name, IncreaseTo: 3}})); err != nil {
		return err
	}
	has := false
	for !has && ctx.Err() == nil { // brokers hear of a new topic a moment after its creator has the answer
		described, err := client.DescribeConfigs(ctx, []kafka.ConfigResource{{Type: kafka.ResourceTopic, Name: name}})
		if err != nil {
			return err
		}
		_, has = described[0].Config["retention.ms"]
	}
	if !has {
		return errors.New("no retention.ms")
	}
	return failure(client.DeleteTopics(ctx, []string{name}))
}

// Sends values to a partition of each, one after the other.
func send(producer *kafka.Producer, topic string, partitions int, values []string) error {
	delivered := make(chan kafka.Event, len(values))
	for number, value := range values {
		where := kafka.TopicPartition{Topic: &topic, Partition: int32(number % partitions)}
		if err := producer.Produce(&kafka.Message{TopicPartition: where, Value: []byte(value)}, delivered); err != nil {
			return err
		}
	}
	for range values {
		select {
		case event := <-delivered:
			if err := event.(*kafka.Message).TopicPartition.Error; err != nil {
				return err
			}
		case <-time.After(withinMs * time.Millisecond):
			return errors.New("not delivered in time")
		}
	}
	return nil
}

func numbers() (values []string) {
	for number := range records {
		values = append(values, strconv.Itoa(number))
	}
	return values
}

func produce(bootstrap, topic string) error {
	producer, err := kafka.NewProducer(&kafka.ConfigMap{"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0})
	if err != nil {
		return err
	}
	defer producer.Close()
	return send(producer, topic, 2, numbers())
}

func newConsumer(bootstrap, group, isolation string) (*kafka.Consumer, error) {
	return kafka.NewConsumer(&kafka.ConfigMap{
		"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest",
		"enable.auto.commit": false, "isolation.level": isolation,
	})
}

func read(consumer *kafka.Consumer, wanted int) (map[string]bool, error) {
	found := map[string]bool{}
	end := time.Now().Add(withinMs * time.Millisecond)
	for len(found) < wanted {
		if time.Now().After(end) {
			return found, fmt.Errorf("read %d of %d", len(found), wanted)
		}
		message, err := consumer.ReadMessage(500 * time.Millisecond)
		if err == nil {
			found[string(message.Value)] = true
			continue
		}
		// A topic that was created a moment ago is unknown for a moment.
		if code := err.(kafka.Error).Code(); code != kafka.ErrTimedOut && code != kafka.ErrUnknownTopicOrPart {
			return found, err
		}
	}
	return found, nil
}

func both(topic string) []kafka.TopicPartition {
	return []kafka.TopicPartition{{Topic: &topic, Partition: 0}, {Topic: &topic, Partition: 1}}
}

func consume(bootstrap, topic string) error {
	consumer, err := newConsumer(bootstrap, topic+"-consume", "read_committed")
	if err != nil {
		return err
	}
	defer consumer.Close()
	if err := consumer.Assign(both(topic)); err != nil {
		return err
	}
	_, err = read(consumer, records)
	return err
}

func classic(bootstrap, topic string) error {
	consumer, err := newConsumer(bootstrap, topic+"-classic", "read_committed")
	if err != nil {
		return err
	}
	defer consumer.Close()
	if err := consumer.Subscribe(topic, nil); err != nil {
		return err
	}
	if _, err := read(consumer, records); err != nil {
		return err
	}
	if _, err := consumer.Commit(); err != nil {
		return err
	}
	committed, err := consumer.Committed(both(topic), withinMs)
	if err != nil {
		return err
	}
	if sum := committed[0].Offset + committed[1].Offset; sum != records {
		return fmt.Errorf("committed %d", sum)
	}
	return nil
}

func transactions(bootstrap, topic string) error {
	name, target := topic+"-transactions", topic+"-target"
	producer, err := kafka.NewProducer(&kafka.ConfigMap{"bootstrap.servers": bootstrap, "transactional.id": name})
	if err != nil {
		return err
	}
	defer producer.Close()
	consumer, err := newConsumer(bootstrap, name, "read_committed")
	if err != nil {
		return err
	}
	defer consumer.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := errors.Join(producer.InitTransactions(ctx), consumer.Subscribe(topic, nil)); err != nil {
		return err
	}
	found, err := read(consumer, records)
	if err != nil {
		return err
	}
	var values []string
	for value := range found {
		values = append(values, value)
	}
	positions, err := consumer.Position(both(topic))
	if err != nil {
		return err
	}
	member, err := consumer.GetConsumerGroupMetadata()
	if err != nil {
		return err
	}
	write := func(values []string, end func() error) error {
		if err := producer.BeginTransaction(); err != nil {
			return err
		}
		if err := send(producer, target, 1, values); err != nil {
			return err
		}
		return end()
	}
	commit := func() error { return producer.CommitTransaction(ctx) }
	committing := func() error {
		return errors.Join(producer.SendOffsetsToTransaction(ctx, positions, member), commit())
	}
	if err := write(values, committing); err != nil {
		return err
	}
	if err := write([]string{aborted}, func() error { return producer.AbortTransaction(ctx) }); err != nil {
		return err
	}
	if err := write([]string{last}, commit); err != nil {
		return err
	}
	checker, err := newConsumer(bootstrap, name+"-check", "read_committed")
	if err != nil {
		return err
	}
	defer checker.Close()
	if err := checker.Assign([]kafka.TopicPartition{{Topic: &target, Partition: 0}}); err != nil {
		return err
	}
	checked, err := read(checker, records+1)
	if err != nil {
		return err
	}
	if checked[aborted] || !checked[last] {
		return fmt.Errorf("read %v", checked)
	}
	return nil
}
