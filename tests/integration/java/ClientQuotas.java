import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AdminClientConfig;
import org.apache.kafka.clients.admin.AlterClientQuotasOptions;
import org.apache.kafka.common.quota.ClientQuotaAlteration;
import org.apache.kafka.common.quota.ClientQuotaEntity;
import org.apache.kafka.common.quota.ClientQuotaFilter;

/**
 * Sets quotas of a user, of the default client id and of an address with the Java Admin client, lists them, has one more only
 * validated, removes them and lists again. One line per step: ClientQuotas BOOTSTRAP
 */
public final class ClientQuotas {
    private ClientQuotas() {
    }

    public static void main(String[] arguments) throws Exception {
        ClientQuotaEntity user = entity("user", "java-user");
        ClientQuotaEntity client = entity("client-id", null);
        ClientQuotaEntity address = entity("ip", "192.0.2.7");
        try (Admin admin = Admin.create(Map.of(AdminClientConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]))) {
            admin.alterClientQuotas(List.of(
                set(user, "producer_byte_rate", 1000.0),
                set(client, "request_percentage", 12.5),
                set(address, "connection_creation_rate", 7.0))).all().get();
            System.out.println("set " + listed(admin));
            try {
                admin.alterClientQuotas(List.of(set(user, "producer_byte_rate", -1.0)),
                    new AlterClientQuotasOptions().validateOnly(true)).all().get();
            } catch (java.util.concurrent.ExecutionException refused) {
                System.out.println("refused " + refused.getCause().getMessage());
            }
            admin.alterClientQuotas(List.of(set(user, "producer_byte_rate", 2000.0)),
                new AlterClientQuotasOptions().validateOnly(true)).all().get();
            System.out.println("validated " + listed(admin));
            admin.alterClientQuotas(List.of(
                set(user, "producer_byte_rate", null),
                set(client, "request_percentage", null),
                set(address, "connection_creation_rate", null))).all().get();
            System.out.println("removed " + listed(admin));
        }
    }

    private static ClientQuotaEntity entity(String type, String name) {
        Map<String, String> entries = new HashMap<>();
        entries.put(type, name);
        return new ClientQuotaEntity(entries);
    }

    private static ClientQuotaAlteration set(ClientQuotaEntity entity, String key, Double value) {
        Collection<ClientQuotaAlteration.Op> operations = new ArrayList<>();
        operations.add(new ClientQuotaAlteration.Op(key, value));
        return new ClientQuotaAlteration(entity, operations);
    }

    private static Map<String, Map<String, Double>> listed(Admin admin) throws Exception {
        Map<String, Map<String, Double>> found = new TreeMap<>();
        admin.describeClientQuotas(ClientQuotaFilter.all()).entities().get()
            .forEach((entity, values) -> found.put(entity.entries().toString(), new TreeMap<>(values)));
        return found;
    }
}
