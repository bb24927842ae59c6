import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.state.Stores;

/**
 * Applications with two repartition topics and two changelogs each. They run until the standard input ends:
 * StreamsQuotas STATE_FOLDER INPUT (BOOTSTRAP PROTOCOL NAME)...; NAME is the output's too. One that fails is a line
 * "NAME failed: why".
 */
public final class StreamsQuotas {
    private StreamsQuotas() {
    }

    private static KafkaStreams application(String folder, String input, String bootstrap, String protocol, String name) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("group.protocol", protocol);
        settings.put("application.id", name);
        settings.put("client.id", name);
        settings.put("state.dir", folder);
        settings.put("commit.interval.ms", "100");
        settings.put("statestore.cache.max.bytes", "0");
        settings.put("default.key.serde", Serdes.StringSerde.class);
        settings.put("default.value.serde", Serdes.StringSerde.class);
        StreamsBuilder builder = new StreamsBuilder();
        builder.<String, String>stream(input)
            .selectKey((key, value) -> key)
            .groupByKey()
            .count(Materialized.as(Stores.inMemoryKeyValueStore("first")))
            .toStream()
            .mapValues(count -> Long.toString(count))
            .selectKey((key, value) -> key)
            .groupByKey()
            .count(Materialized.as(Stores.inMemoryKeyValueStore("second")))
            .toStream()
            .mapValues(count -> Long.toString(count))
            .to(name);
        KafkaStreams made = new KafkaStreams(builder.build(settings), settings);
        made.setUncaughtExceptionHandler(failure -> {
            System.out.println(name + " failed: " + failure);
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        return made;
    }

    public static void main(String[] arguments) throws Exception {
        List<KafkaStreams> running = new ArrayList<>();
        for (int at = 2; at < arguments.length; at += 3) {
            KafkaStreams each = application(
                arguments[0], arguments[1], arguments[at], arguments[at + 1], arguments[at + 2]);
            each.start();
            running.add(each);
        }
        System.in.read();
        running.forEach(KafkaStreams::close);
    }
}
