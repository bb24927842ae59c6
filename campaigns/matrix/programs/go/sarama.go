package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/IBM/sarama"
)

var saramaSteps = map[string]step{
	"admin":        saramaAdmin,
	"produce":      saramaProduce,
	"consume":      saramaConsume,
	"classic":      saramaClassic,
	"transactions": saramaTransactions,
	"quotas":       saramaQuotas,
}

func saramaConfig() *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.V3_6_0_0
	config.Producer.Return.Successes = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Enable = false
	return config
}

func saramaAdmin(ctx context.Context, bootstrap []string, topic string) error {
	admin, err := sarama.NewClusterAdmin(bootstrap, saramaConfig())
	if err != nil {
		return err
	}
	defer admin.Close()
	name := topic + "-admin"
	if err := admin.CreateTopic(name, &sarama.TopicDetail{NumPartitions: 1, ReplicationFactor: 1}, false); err != nil {
		return err
	}
	set := map[string]sarama.IncrementalAlterConfigsEntry{
		"retention.ms": {Operation: sarama.IncrementalAlterConfigsOperationSet, Value: text("123456")},
	}
	if err := admin.IncrementalAlterConfig(sarama.TopicResource, name, set, false); err != nil {
		return err
	}
	if err := admin.CreatePartitions(name, 3, nil, false); err != nil {
		return err
	}
	if err := eventually(ctx, func() error {
		_, err := admin.DescribeConfig(sarama.ConfigResource{Type: sarama.TopicResource, Name: name})
		return err
	}); err != nil {
		return err
	}
	if _, _, err := admin.DescribeCluster(); err != nil {
		return err
	}
	if _, err := admin.ListConsumerGroups(); err != nil {
		return err
	}
	return admin.DeleteTopic(name)
}

func saramaProduce(_ context.Context, bootstrap []string, topic string) error {
	producer, err := sarama.NewSyncProducer(bootstrap, saramaConfig())
	if err != nil {
		return err
	}
	defer producer.Close()
	for number := range records {
		message := &sarama.ProducerMessage{Topic: topic, Partition: int32(number % 2), Value: sarama.StringEncoder(value(number))}
		if _, _, err := producer.SendMessage(message); err != nil {
			return err
		}
	}
	return nil
}

func saramaRead(ctx context.Context, bootstrap []string, config *sarama.Config, topic string, partitions int32, wanted int) (found, error) {
	read := found{}
	consumer, err := sarama.NewConsumer(bootstrap, config)
	if err != nil {
		return read, err
	}
	defer consumer.Close()
	messages := make(chan string)
	for partition := range partitions {
		one, err := consumer.ConsumePartition(topic, partition, sarama.OffsetOldest)
		if err != nil {
			return read, err
		}
		defer one.AsyncClose()
		go func() {
			for message := range one.Messages() {
				select {
				case messages <- string(message.Value):
				case <-ctx.Done():
				}
			}
		}()
	}
	for len(read) < wanted {
		select {
		case message := <-messages:
			read[message] = true
		case <-ctx.Done():
			return read, read.complete(wanted)
		}
	}
	return read, nil
}

func saramaConsume(ctx context.Context, bootstrap []string, topic string) error {
	_, err := saramaRead(ctx, bootstrap, saramaConfig(), topic, 2, records)
	return err
}

type saramaHandler struct {
	messages chan *sarama.ConsumerMessage
}

func (saramaHandler) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (saramaHandler) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (h saramaHandler) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case message := <-claim.Messages():
			if message == nil {
				return nil
			}
			session.MarkMessage(message, "")
			session.Commit()
			select {
			case h.messages <- message:
			case <-session.Context().Done():
			}
		case <-session.Context().Done():
			return nil
		}
	}
}

func saramaGroupRead(ctx context.Context, bootstrap []string, group, topic string) (found, error) {
	read := found{}
	consumer, err := sarama.NewConsumerGroup(bootstrap, group, saramaConfig())
	if err != nil {
		return read, err
	}
	defer consumer.Close()
	reading, stop := context.WithCancel(ctx)
	defer stop()
	handler := saramaHandler{make(chan *sarama.ConsumerMessage)}
	ended := make(chan error, 1)
	go func() {
		for reading.Err() == nil {
			if err := consumer.Consume(reading, []string{topic}, handler); err != nil {
				ended <- err
				return
			}
		}
	}()
	for len(read) < records {
		select {
		case message := <-handler.messages:
			read[string(message.Value)] = true
		case err := <-ended:
			return read, err
		case <-ctx.Done():
			return read, read.complete(records)
		}
	}
	return read, nil
}

func saramaClassic(ctx context.Context, bootstrap []string, topic string) error {
	group := topic + "-classic"
	if _, err := saramaGroupRead(ctx, bootstrap, group, topic); err != nil {
		return err
	}
	admin, err := sarama.NewClusterAdmin(bootstrap, saramaConfig())
	if err != nil {
		return err
	}
	defer admin.Close()
	committed, err := admin.ListConsumerGroupOffsets(group, map[string][]int32{topic: {0, 1}})
	if err != nil {
		return err
	}
	var sum int64
	for partition := range int32(2) {
		sum += committed.GetBlock(topic, partition).Offset
	}
	if sum != records {
		return fmt.Errorf("committed %d", sum)
	}
	return nil
}

func saramaTransactions(ctx context.Context, bootstrap []string, topic string) error {
	name, target := topic+"-transactions", topic+"-target"
	read, err := saramaGroupRead(ctx, bootstrap, name, topic)
	if err != nil {
		return err
	}
	config := saramaConfig()
	config.Producer.Idempotent = true
	config.Producer.Transaction.ID = name
	config.Net.MaxOpenRequests = 1
	producer, err := sarama.NewSyncProducer(bootstrap, config)
	if err != nil {
		return err
	}
	defer producer.Close()
	write := func(values []string, end func() error) error {
		if err := producer.BeginTxn(); err != nil {
			return err
		}
		for _, each := range values {
			if _, _, err := producer.SendMessage(&sarama.ProducerMessage{Topic: target, Value: sarama.StringEncoder(each)}); err != nil {
				return err
			}
		}
		return end()
	}
	var values []string
	for each := range read {
		values = append(values, each)
	}
	committing := func() error {
		offsets := map[string][]*sarama.PartitionOffsetMetadata{topic: {{Partition: 0, Offset: 10}, {Partition: 1, Offset: 10}}}
		return errors.Join(producer.AddOffsetsToTxn(offsets, name), producer.CommitTxn())
	}
	if err := write(values, committing); err != nil {
		return err
	}
	if err := write([]string{aborted}, producer.AbortTxn); err != nil {
		return err
	}
	if err := write([]string{last}, producer.CommitTxn); err != nil {
		return err
	}
	config = saramaConfig()
	config.Consumer.IsolationLevel = sarama.ReadCommitted
	checked, err := saramaRead(ctx, bootstrap, config, target, 1, records+1)
	return errors.Join(err, checked.committed())
}

func saramaQuotas(ctx context.Context, bootstrap []string, topic string) error {
	admin, err := sarama.NewClusterAdmin(bootstrap, saramaConfig())
	if err != nil {
		return err
	}
	defer admin.Close()
	name := topic + "-limited"
	entity := []sarama.QuotaEntityComponent{{EntityType: sarama.QuotaEntityClientID, MatchType: sarama.QuotaMatchExact, Name: name}}
	filter := []sarama.QuotaFilterComponent{{EntityType: sarama.QuotaEntityClientID, MatchType: sarama.QuotaMatchExact, Match: name}}
	await := func(wanted int) error {
		for ctx.Err() == nil {
			described, err := admin.DescribeClientQuotas(filter, true)
			if err != nil || len(described) == wanted {
				return err
			}
			time.Sleep(50 * time.Millisecond)
		}
		return ctx.Err()
	}
	if err := admin.AlterClientQuotas(entity, sarama.ClientQuotasOp{Key: "producer_byte_rate", Value: 1000}, false); err != nil {
		return err
	}
	if err := await(1); err != nil {
		return err
	}
	if err := admin.AlterClientQuotas(entity, sarama.ClientQuotasOp{Key: "producer_byte_rate", Remove: true}, false); err != nil {
		return err
	}
	return await(0)
}
