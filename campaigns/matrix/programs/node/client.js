// The steps of the matrix with KafkaJS, or with Confluent's client, which has the same interface:
// node client.js kafkajs|confluent BOOTSTRAP TOPIC STEP...
//
// Each step prints a line: its name, then "ok", "lacks" (the client has no such thing) or "failed" and why.
'use strict';

const [family, bootstrap, topic, ...steps] = process.argv.slice(2);
const confluent = family === 'confluent';
const {Kafka, logLevel} = confluent ? require('@confluentinc/kafka-javascript').KafkaJS : require('kafkajs');
const RECORDS = 20;
const WITHIN_MS = 60000;
const ABORTED = '1000';
const LAST = '2000';

const settings = {brokers: bootstrap.split(','), clientId: `${topic}-${family}`, logLevel: logLevel.NOTHING};
const kafka = new Kafka(confluent ? {kafkaJS: settings} : settings);

const producerOf = (options) => kafka.producer(confluent ? {kafkaJS: {acks: -1, ...options}} : options);
const consumerOf = (options, more) => kafka.consumer(confluent ? {kafkaJS: options, ...more} : options);

function check(holds, otherwise) {
  if (!holds) {
    throw new Error(otherwise);
  }
}

async function closing(client, use) {
  await client.connect();
  try {
    return await use(client);
  } finally {
    await client.disconnect();
  }
}

const send = (producer, target, partitions, values) => producer.send({
  topic: target,
  ...(confluent ? {} : {acks: -1}),
  messages: values.map((value, number) => ({value, partition: number % partitions})),
});

// Reads as a member of a group until it has as many; then `then` gets them and the next offset of each partition.
async function groupRead(options, target, wanted, then, more = {}) {
  if (confluent) {
    options = {...options, fromBeginning: true, autoCommit: false};
  }
  return closing(consumerOf(options, more), async (consumer) => {
    await consumer.subscribe(confluent ? {topics: [target]} : {topics: [target], fromBeginning: true});
    const found = new Set();
    const next = {};
    await new Promise((resolve, reject) => {
      const timer = setTimeout(() => reject(new Error(`read ${found.size} of ${wanted}`)), WITHIN_MS);
      consumer.run({
        ...(confluent ? {} : {autoCommit: false}),
        eachMessage: async ({partition, message}) => {
          found.add(message.value.toString());
          next[partition] = String(Number(message.offset) + 1);
          if (found.size === wanted) {
            clearTimeout(timer);
            resolve();
          }
        },
      }).catch(reject);
    });
    return then(found, Object.entries(next).map(([partition, offset]) => (
      {topic: target, partition: Number(partition), offset})), consumer);
  });
}

async function group(protocol, more) {
  const groupId = `${topic}-${protocol}`;
  await groupRead({groupId}, topic, RECORDS, (_, offsets, consumer) => consumer.commitOffsets(offsets), more);
  await closing(kafka.admin(), async (admin) => {
    const committed = await admin.fetchOffsets({groupId, topics: [topic]});
    const sum = committed[0].partitions.reduce((total, each) => total + Number(each.offset), 0);
    check(sum === RECORDS, `committed ${sum}`);
  });
}

const known = {
  admin: () => closing(kafka.admin(), async (admin) => {
    const name = `${topic}-admin`;
    const topics = [{topic: name, numPartitions: 1, replicationFactor: 1}];
    await admin.createTopics(confluent ? {topics} : {topics, waitForLeaders: true});
    if (!confluent) {
      await admin.createPartitions({topicPartitions: [{topic: name, count: 3}]});
      const {resources} = await admin.describeConfigs({includeSynonyms: false, resources: [{type: 2, name}]});
      check(resources[0].configEntries.some((entry) => entry.configName === 'retention.ms'), 'no retention.ms');
      await admin.describeCluster();
    }
    await admin.listGroups();
    await admin.deleteTopics({topics: [name]});
  }),
  produce: () => closing(producerOf({}), (producer) => (
    send(producer, topic, 2, [...Array(RECORDS).keys()].map(String)))),
  classic: () => group('classic'),
  transactions: async () => {
    const name = `${topic}-transactions`;
    const target = `${topic}-target`;
    const producer = producerOf({transactionalId: name, maxInFlightRequests: 1, idempotent: true});
    await closing(producer, async () => {
      await groupRead({groupId: name}, topic, RECORDS, async (found, offsets, consumer) => {
        const transaction = await producer.transaction();
        await send(transaction, target, 1, [...found]);
        const topics = [{topic, partitions: offsets.map(({partition, offset}) => ({partition, offset}))}];
        await transaction.sendOffsets(confluent ? {consumer, topics} : {consumerGroupId: name, topics});
        await transaction.commit();
      });
      const aborted = await producer.transaction();
      await send(aborted, target, 1, [ABORTED]);
      await aborted.abort();
      const last = await producer.transaction();
      await send(last, target, 1, [LAST]);
      await last.commit();
    });
    await groupRead({groupId: `${name}-check`}, target, RECORDS + 1, (found) => (
      check(found.has(LAST) && !found.has(ABORTED), `read ${[...found]}`)));
  },
  // It reads as a member of a group only, and knows no other protocol.
  ...(confluent ? {consumer: () => group('consumer', {'group.protocol': 'consumer'})} : {}),
};

(async () => {
  for (const name of steps) {
    if (!(name in known)) {
      console.log(name, 'lacks');
      continue;
    }
    try {
      await known[name]();
      console.log(name, 'ok');
    } catch (error) {
      console.log(name, 'failed', String(error.message || error).replace(/\s+/g, ' '));
    }
  }
  process.exit(0);
})();
