import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AdminClientConfig;
import org.apache.kafka.clients.admin.NewTopic;

/**
 * Creates topics one after the other with the default options, thus with retries on quota violations, and prints how
 * many milliseconds each took: AdminRetry BOOTSTRAP CLIENT_ID NAME:PARTITIONS...
 */
public final class AdminRetry {
    private AdminRetry() {
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, Object> settings = Map.of(
            AdminClientConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0],
            AdminClientConfig.CLIENT_ID_CONFIG, arguments[1]);
        try (Admin admin = Admin.create(settings)) {
            for (String wanted : List.of(arguments).subList(2, arguments.length)) {
                String[] parts = wanted.split(":");
                NewTopic topic = new NewTopic(parts[0], Integer.parseInt(parts[1]), (short) 1);
                long start = System.nanoTime();
                admin.createTopics(List.of(topic)).all().get();
                System.out.println(parts[0] + " " + (System.nanoTime() - start) / 1_000_000);
            }
        }
    }
}
