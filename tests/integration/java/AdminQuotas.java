import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AdminClientConfig;
import org.apache.kafka.clients.admin.CreateTopicsOptions;
import org.apache.kafka.clients.admin.CreateTopicsResult;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.common.errors.ThrottlingQuotaExceededException;

/**
 * Creates topics in one request and prints what became of each, with the throttle time where there is one:
 * AdminQuotas BOOTSTRAP CLIENT_ID RETRY TIMEOUT_MS NAME:PARTITIONS...
 */
public final class AdminQuotas {
    private AdminQuotas() {
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, Object> settings = Map.of(
            AdminClientConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0],
            AdminClientConfig.CLIENT_ID_CONFIG, arguments[1]);
        List<NewTopic> topics = new ArrayList<>();
        for (String wanted : List.of(arguments).subList(4, arguments.length)) {
            String[] parts = wanted.split(":");
            topics.add(new NewTopic(parts[0], Integer.parseInt(parts[1]), (short) 1));
        }
        CreateTopicsOptions options = new CreateTopicsOptions()
            .retryOnQuotaViolation(Boolean.parseBoolean(arguments[2]))
            .timeoutMs(Integer.parseInt(arguments[3]));
        try (Admin admin = Admin.create(settings)) {
            // The first request also connects; without this its time would count against the timeout.
            admin.describeCluster().nodes().get();
            CreateTopicsResult results = admin.createTopics(topics, options);
            for (NewTopic topic : topics) {
                String said = "ok";
                try {
                    results.values().get(topic.name()).get();
                } catch (ExecutionException failed) {
                    Throwable cause = failed.getCause();
                    said = cause.getClass().getSimpleName();
                    if (cause instanceof ThrottlingQuotaExceededException) {
                        said += " " + ((ThrottlingQuotaExceededException) cause).throttleTimeMs();
                    }
                }
                System.out.println(topic.name() + " " + said);
            }
        }
    }
}
