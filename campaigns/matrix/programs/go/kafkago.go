package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/segmentio/kafka-go"
)

// Without transactions: its calls for them are there, a producer that uses them is not.
var kafkaGo = map[string]step{
	"admin":   kafkaGoAdmin,
	"produce": kafkaGoProduce,
	"consume": kafkaGoConsume,
	"classic": kafkaGoClassic,
	"quotas":  kafkaGoQuotas,
}

func kafkaGoClient(bootstrap []string) *kafka.Client {
	return &kafka.Client{Addr: kafka.TCP(bootstrap...), Timeout: time.Minute}
}

func kafkaGoAdmin(ctx context.Context, bootstrap []string, topic string) error {
	client, name := kafkaGoClient(bootstrap), topic+"-admin"
	created, err := client.CreateTopics(ctx, &kafka.CreateTopicsRequest{
		Topics: []kafka.TopicConfig{{Topic: name, NumPartitions: 1, ReplicationFactor: 1}},
	})
	if err = errors.Join(err, first(created != nil, func() error { return created.Errors[name] })); err != nil {
		return err
	}
	if err := eventually(ctx, func() error {
		found, err := client.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{name}})
		return errors.Join(err, first(found != nil, func() error { return found.Topics[0].Error }))
	}); err != nil {
		return err
	}
	grown, err := client.CreatePartitions(ctx, &kafka.CreatePartitionsRequest{
		Topics: []kafka.TopicPartitionsConfig{{Name: name, Count: 3}},
	})
	if err = errors.Join(err, first(grown != nil, func() error { return grown.Errors[name] })); err != nil {
		return err
	}
	if _, err := client.DescribeConfigs(ctx, &kafka.DescribeConfigsRequest{
		Resources: []kafka.DescribeConfigRequestResource{{ResourceType: kafka.ResourceTypeTopic, ResourceName: name}},
	}); err != nil {
		return err
	}
	if _, err := client.ListGroups(ctx, &kafka.ListGroupsRequest{}); err != nil {
		return err
	}
	deleted, err := client.DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: []string{name}})
	return errors.Join(err, first(deleted != nil, func() error { return deleted.Errors[name] }))
}

func first(there bool, failure func() error) error {
	if !there {
		return nil
	}
	return failure()
}

func kafkaGoProduce(ctx context.Context, bootstrap []string, topic string) error {
	writer := &kafka.Writer{
		Addr: kafka.TCP(bootstrap...), Topic: topic, RequiredAcks: kafka.RequireAll,
		Balancer: &kafka.RoundRobin{}, BatchTimeout: time.Millisecond,
	}
	defer writer.Close()
	for number := range records {
		if err := writer.WriteMessages(ctx, kafka.Message{Value: []byte(value(number))}); err != nil {
			return err
		}
	}
	return nil
}

func kafkaGoRead(ctx context.Context, reader *kafka.Reader, read found, wanted int) error {
	for range wanted {
		message, err := reader.FetchMessage(ctx)
		if err != nil {
			return err
		}
		read[string(message.Value)] = true
		if reader.Config().GroupID != "" {
			if err := reader.CommitMessages(ctx, message); err != nil {
				return err
			}
		}
	}
	return nil
}

func kafkaGoConsume(ctx context.Context, bootstrap []string, topic string) error {
	read := found{}
	for partition := range 2 {
		reader := kafka.NewReader(kafka.ReaderConfig{Brokers: bootstrap, Topic: topic, Partition: partition, MaxWait: time.Second})
		err := kafkaGoRead(ctx, reader, read, records/2)
		if err := errors.Join(err, reader.Close()); err != nil {
			return err
		}
	}
	return read.complete(records)
}

func kafkaGoClassic(ctx context.Context, bootstrap []string, topic string) error {
	group, read := topic+"-classic", found{}
	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers: bootstrap, GroupID: group, Topic: topic, StartOffset: kafka.FirstOffset, MaxWait: time.Second,
	})
	err := kafkaGoRead(ctx, reader, read, records)
	if err := errors.Join(err, reader.Close()); err != nil {
		return err
	}
	committed, err := kafkaGoClient(bootstrap).OffsetFetch(ctx, &kafka.OffsetFetchRequest{
		GroupID: group, Topics: map[string][]int{topic: {0, 1}},
	})
	if err != nil {
		return err
	}
	var sum int64
	for _, partition := range committed.Topics[topic] {
		sum += partition.CommittedOffset
	}
	if sum != records {
		return fmt.Errorf("committed %d", sum)
	}
	return read.complete(records)
}

func kafkaGoQuotas(ctx context.Context, bootstrap []string, topic string) error {
	client, name := kafkaGoClient(bootstrap), topic+"-limited"
	alter := func(op kafka.AlterClientQuotaOps) error {
		altered, err := client.AlterClientQuotas(ctx, &kafka.AlterClientQuotasRequest{
			Entries: []kafka.AlterClientQuotaEntry{{
				Entities: []kafka.AlterClientQuotaEntity{{EntityType: "client-id", EntityName: name}},
				Ops:      []kafka.AlterClientQuotaOps{op},
			}},
		})
		if err != nil {
			return err
		}
		return altered.Entries[0].Error
	}
	await := func(wanted int) error {
		for ctx.Err() == nil {
			described, err := client.DescribeClientQuotas(ctx, &kafka.DescribeClientQuotasRequest{
				Components: []kafka.DescribeClientQuotasRequestComponent{{EntityType: "client-id", Match: name}}, Strict: true,
			})
			if err != nil || len(described.Entries) == wanted {
				return err
			}
			time.Sleep(50 * time.Millisecond)
		}
		return ctx.Err()
	}
	if err := alter(kafka.AlterClientQuotaOps{Key: "producer_byte_rate", Value: 1000}); err != nil {
		return err
	}
	if err := await(1); err != nil {
		return err
	}
	if err := alter(kafka.AlterClientQuotaOps{Key: "producer_byte_rate", Remove: true}); err != nil {
		return err
	}
	return await(0)
}
