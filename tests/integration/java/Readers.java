import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * One reader of a topic, which prints each value as a line and ends after so many:
 * Readers BOOTSTRAP TOPIC classic|consumer|share COUNT
 */
public final class Readers {
    private Readers() {
    }

    private static int print(ConsumerRecords<String, String> records) {
        records.forEach(record -> System.out.println(record.value()));
        System.out.flush();
        return records.count();
    }

    public static void main(String[] arguments) throws Exception {
        String group = "readers-" + arguments[1] + "-" + arguments[2];
        int wanted = Integer.parseInt(arguments[3]);
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("client.id", group);
        settings.put("group.id", group);
        List<String> topics = List.of(arguments[1]);
        StringDeserializer text = new StringDeserializer();
        int read = 0;
        if (arguments[2].equals("share")) {
            try (Admin admin = Admin.create(Map.of("bootstrap.servers", arguments[0]))) {
                AlterConfigOp earliest = new AlterConfigOp(
                    new ConfigEntry("share.auto.offset.reset", "earliest"), AlterConfigOp.OpType.SET);
                admin.incrementalAlterConfigs(
                    Map.of(new ConfigResource(ConfigResource.Type.GROUP, group), List.of(earliest))).all().get();
            }
            settings.put("share.acknowledgement.mode", "explicit");
            try (KafkaShareConsumer<String, String> consumer = new KafkaShareConsumer<>(settings, text, text)) {
                consumer.subscribe(topics);
                while (read < wanted) {
                    ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(200));
                    records.forEach(consumer::acknowledge);
                    consumer.commitSync().forEach((partition, error) -> error.ifPresent(System.err::println));
                    read += print(records);
                }
            }
            return;
        }
        settings.put("group.protocol", arguments[2]);
        settings.put("auto.offset.reset", "earliest");
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings, text, text)) {
            consumer.subscribe(topics);
            while (read < wanted) {
                read += print(consumer.poll(Duration.ofMillis(200)));
            }
        }
    }
}
