import java.time.Duration;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.StringDeserializer;

/** The step of the matrix with a share group, for versions that have its consumer. */
public final class ShareStep {
    private ShareStep() {
    }

    public static String run(String[] arguments) throws Exception {
        String group = arguments[1] + "-share";
        ConfigResource resource = new ConfigResource(ConfigResource.Type.GROUP, group);
        AlterConfigOp earliest = new AlterConfigOp(
            new ConfigEntry("share.auto.offset.reset", "earliest"), AlterConfigOp.OpType.SET);
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", arguments[0]))) {
            admin.incrementalAlterConfigs(Map.of(resource, List.of(earliest))).all().get();
        }
        Map<String, Object> settings = Map.of(
            "bootstrap.servers", arguments[0], "client.id", group, "group.id", group);
        Set<String> found = new HashSet<>();
        StringDeserializer text = new StringDeserializer();
        try (KafkaShareConsumer<String, String> consumer = new KafkaShareConsumer<>(settings, text, text)) {
            consumer.subscribe(List.of(arguments[1]));
            long end = System.currentTimeMillis() + 60_000;
            while (found.size() < 20 && System.currentTimeMillis() < end) {
                consumer.poll(Duration.ofMillis(200)).forEach(record -> found.add(record.value()));
                consumer.commitSync();
            }
        }
        if (found.size() != 20) {
            throw new IllegalStateException("read " + found);
        }
        return "ok";
    }
}
