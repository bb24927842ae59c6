import java.nio.file.Files;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.state.Stores;

/** The step of the matrix with an application of Kafka Streams: it counts the records and needs internal topics. */
public final class StreamsStep {
    private StreamsStep() {
    }

    public static String run(String[] arguments) throws Exception {
        String bootstrap = arguments[0], topic = arguments[1], protocol = arguments[2];
        String name = topic + "-streams-" + protocol, output = topic + "-counts-" + protocol;
        Properties settings = new Properties();
        if (StreamsConfig.configDef().names().contains("group.protocol")) {
            settings.put("group.protocol", protocol);
        } else if (!protocol.equals("classic")) {
            return "lacks";
        }
        settings.put("bootstrap.servers", bootstrap);
        settings.put("application.id", name);
        settings.put("client.id", name);
        settings.put("state.dir", Files.createTempDirectory("matrix-streams").toString());
        settings.put("replication.factor", "1");
        settings.put("commit.interval.ms", "200");
        settings.put("auto.offset.reset", "earliest");
        settings.put("default.key.serde", Serdes.StringSerde.class);
        settings.put("default.value.serde", Serdes.StringSerde.class);
        StreamsBuilder builder = new StreamsBuilder();
        builder.<String, String>stream(topic)
            .groupBy((key, value) -> "all")  // another key: a repartition topic is needed
            .count(Materialized.as(Stores.inMemoryKeyValueStore("counts")))
            .toStream()
            .mapValues(count -> Long.toString(count))
            .to(output);
        Map<String, Object> reading = new HashMap<>();
        reading.put("bootstrap.servers", bootstrap);
        reading.put("auto.offset.reset", "earliest");
        StringDeserializer text = new StringDeserializer();
        long[] counted = {0};
        Throwable[] failure = {null};
        try (KafkaStreams application = new KafkaStreams(builder.build(settings), settings);
             KafkaConsumer<String, String> consumer = new KafkaConsumer<>(reading, text, text)) {
            application.setUncaughtExceptionHandler(thrown -> {
                failure[0] = thrown;
                return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
            });
            application.start();
            consumer.assign(List.of(new TopicPartition(output, 0)));
            long end = System.currentTimeMillis() + 60_000;
            while (counted[0] < 20 && failure[0] == null && System.currentTimeMillis() < end) {
                consumer.poll(Duration.ofMillis(200))
                    .forEach(record -> counted[0] = Math.max(counted[0], Long.parseLong(record.value())));
            }
            application.close(Duration.ofSeconds(20));
        }
        if (failure[0] != null) {
            throw new IllegalStateException(failure[0]);
        }
        if (counted[0] != 20) {
            throw new IllegalStateException("counted " + counted[0]);
        }
        return "ok";
    }
}
