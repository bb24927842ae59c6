package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

var franzGo = map[string]step{
	"admin":    franzAdmin,
	"produce":  franzProduce,
	"consume":  franzConsume,
	"classic":  franzGroup("classic"),
	"consumer": franzGroup("consumer", kgo.ServerSideBalancer(), kgo.Balancers(kgo.RangeBalancer())),
	"share":    franzShare,

	"transactions": franzTransactions,
	"quotas":       franzQuotas,
}

func franz(bootstrap []string, more ...kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(append(more, kgo.SeedBrokers(bootstrap...))...)
}

func franzRead(ctx context.Context, client *kgo.Client, wanted int) (found, error) {
	read := found{}
	for len(read) < wanted {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err0(); err != nil {
			return read, fmt.Errorf("%w after %d records", err, len(read))
		}
		fetches.EachRecord(func(record *kgo.Record) {
			read[string(record.Value)] = true
		})
	}
	return read, nil
}

func franzAdmin(ctx context.Context, bootstrap []string, topic string) error {
	client, err := franz(bootstrap)
	if err != nil {
		return err
	}
	defer client.Close()
	admin, name := kadm.NewClient(client), topic+"-admin"
	if _, err := admin.CreateTopic(ctx, 1, 1, nil, name); err != nil {
		return err
	}
	set := kadm.AlterConfig{Name: "retention.ms", Value: text("123456")}
	if err := eventually(ctx, func() error {
		altered, err := admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{set}, name)
		for _, each := range altered {
			err = errors.Join(err, each.Err)
		}
		return err
	}); err != nil {
		return err
	}
	if created, err := admin.UpdatePartitions(ctx, 3, name); err != nil || created.Error() != nil {
		return errors.Join(err, created.Error())
	}
	if _, err := admin.DescribeTopicConfigs(ctx, name); err != nil {
		return err
	}
	if _, err := admin.ListGroups(ctx); err != nil {
		return err
	}
	deleted, err := admin.DeleteTopics(ctx, name)
	return errors.Join(err, deleted.Error())
}

func franzProduce(ctx context.Context, bootstrap []string, topic string) error {
	client, err := franz(bootstrap, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		return err
	}
	defer client.Close()
	for number := range records {
		record := &kgo.Record{Topic: topic, Partition: int32(number % 2), Value: []byte(value(number))}
		if err := client.ProduceSync(ctx, record).FirstErr(); err != nil {
			return err
		}
	}
	return nil
}

func franzConsume(ctx context.Context, bootstrap []string, topic string) error {
	begin := kgo.NewOffset().AtStart()
	client, err := franz(bootstrap, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: begin, 1: begin}}))
	if err != nil {
		return err
	}
	defer client.Close()
	_, err = franzRead(ctx, client, records)
	return err
}

func franzGroup(protocol string, more ...kgo.Opt) step {
	return func(ctx context.Context, bootstrap []string, topic string) error {
		group := topic + "-" + protocol
		client, err := franz(bootstrap, append(more, kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic),
			kgo.DisableAutoCommit(), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...)
		if err != nil {
			return err
		}
		defer client.Close()
		if _, err := franzRead(ctx, client, records); err != nil {
			return err
		}
		if err := client.CommitUncommittedOffsets(ctx); err != nil {
			return err
		}
		admin := kadm.NewClient(client)
		if err := franzIsOf(ctx, admin, group, protocol); err != nil {
			return err
		}
		committed, err := admin.FetchOffsets(ctx, group)
		if err != nil {
			return err
		}
		var sum int64
		committed.Each(func(offset kadm.OffsetResponse) {
			sum += offset.At
		})
		if sum != records {
			return fmt.Errorf("committed %d", sum)
		}
		return nil
	}
}

// It falls back to the classic protocol by itself where a broker lacks the new one.
func franzIsOf(ctx context.Context, admin *kadm.Client, group, protocol string) error {
	if protocol == "classic" {
		return nil
	}
	groups, err := admin.ListGroupsByType(ctx, []string{protocol})
	if err != nil {
		return err
	}
	if groups[group].GroupType != protocol {
		return errors.New("it went on with the classic protocol")
	}
	return nil
}

func franzShare(ctx context.Context, bootstrap []string, topic string) error {
	group := topic + "-share"
	alone, err := franz(bootstrap)
	if err != nil {
		return err
	}
	defer alone.Close()
	set := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
	set.Name, set.Value, set.Op = "share.auto.offset.reset", text("earliest"), kmsg.IncrementalAlterConfigOpSet
	resource := kmsg.NewIncrementalAlterConfigsRequestResource()
	resource.ResourceType, resource.ResourceName = kmsg.ConfigResourceTypeGroupConfig, group
	resource.Configs = append(resource.Configs, set)
	request := kmsg.NewPtrIncrementalAlterConfigsRequest()
	request.Resources = append(request.Resources, resource)
	altered, err := request.RequestWith(ctx, alone)
	if err != nil {
		return err
	}
	if err := kerr.ErrorForCode(altered.Resources[0].ErrorCode); err != nil {
		return err
	}
	client, err := franz(bootstrap, kgo.ShareGroup(group), kgo.ConsumeTopics(topic))
	if err != nil {
		return err
	}
	defer client.Close()
	_, err = franzRead(ctx, client, records)
	return err
}

func franzTransactions(ctx context.Context, bootstrap []string, topic string) error {
	name, target := topic+"-transactions", topic+"-target"
	session, err := kgo.NewGroupTransactSession(kgo.SeedBrokers(bootstrap...), kgo.TransactionalID(name),
		kgo.ConsumerGroup(name), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	if err != nil {
		return err
	}
	defer session.Close()
	write := func(values []string, how kgo.TransactionEndTry) error {
		if err := session.Begin(); err != nil {
			return err
		}
		for _, each := range values {
			record := &kgo.Record{Topic: target, Value: []byte(each)}
			if err := session.ProduceSync(ctx, record).FirstErr(); err != nil {
				return err
			}
		}
		ended, err := session.End(ctx, how)
		if err == nil && ended != bool(how) {
			err = errors.New("the transaction was not committed")
		}
		return err
	}
	read := map[string]bool{}
	for len(read) < records {
		fetches := session.PollFetches(ctx)
		if err := fetches.Err0(); err != nil {
			return err
		}
		fetches.EachRecord(func(record *kgo.Record) {
			read[string(record.Value)] = true
		})
	}
	var values []string
	for each := range read {
		values = append(values, each)
	}
	if err := write(values, kgo.TryCommit); err != nil {
		return err
	}
	if err := write([]string{aborted}, kgo.TryAbort); err != nil {
		return err
	}
	if err := write([]string{last}, kgo.TryCommit); err != nil {
		return err
	}
	begin := kgo.NewOffset().AtStart()
	checker, err := franz(bootstrap, kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{target: {0: begin}}))
	if err != nil {
		return err
	}
	defer checker.Close()
	checked, err := franzRead(ctx, checker, records+1)
	return errors.Join(err, checked.committed())
}

func franzQuotas(ctx context.Context, bootstrap []string, topic string) error {
	client, err := franz(bootstrap)
	if err != nil {
		return err
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	entity := kadm.ClientQuotaEntity{{Type: "client-id", Name: text(topic + "-limited")}}
	alter := func(op kadm.AlterClientQuotaOp) error {
		altered, err := admin.AlterClientQuotas(ctx, []kadm.AlterClientQuotaEntry{{Entity: entity, Ops: []kadm.AlterClientQuotaOp{op}}})
		if err != nil {
			return err
		}
		return altered[0].Err
	}
	await := func(wanted int) error {
		component := kadm.DescribeClientQuotaComponent{Type: "client-id", MatchName: text(topic + "-limited")}
		for {
			described, err := admin.DescribeClientQuotas(ctx, true, []kadm.DescribeClientQuotaComponent{component})
			if err != nil || len(described) == wanted {
				return err
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	if err := alter(kadm.AlterClientQuotaOp{Key: "producer_byte_rate", Value: 1000}); err != nil {
		return err
	}
	if err := await(1); err != nil {
		return err
	}
	if err := alter(kadm.AlterClientQuotaOp{Key: "producer_byte_rate", Remove: true}); err != nil {
		return err
	}
	return await(0)
}
