import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.lang.annotation.Annotation;
import java.lang.reflect.Constructor;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.common.network.ListenerName;
import org.apache.kafka.common.quota.ClientQuotaAlteration;
import org.apache.kafka.common.quota.ClientQuotaFilter;
import org.apache.kafka.common.test.ClusterInstance;
import org.apache.kafka.common.test.api.ClusterConfig;
import org.apache.kafka.common.test.api.Type;

/**
 * Runs tests that Kafka wrote for a cluster of its own against any bootstrap address: Judges BOOTSTRAP CLASS...
 *
 * The tests ask a `ClusterInstance`. Here it knows the address and nothing else, so its own methods for clients work,
 * and a test that looks inside a broker fails. It prints a line for each test: its class and name, then "ok" or
 * "failed" and why. Each test finds a cluster without topics, groups that are empty, and quotas.
 */
public final class Judges {
    private static final long TEST_MS = 60_000;
    private static final Set<String> MARKS = Set.of("ClusterTest", "ClusterTests", "ClusterTemplate");
    private static final PrintStream RESULTS = System.out;

    private Judges() {
    }

    public static void main(String[] arguments) throws Exception {
        System.setOut(new PrintStream(new ByteArrayOutputStream(), true));
        System.setErr(new PrintStream(new ByteArrayOutputStream(), true));
        ClusterInstance cluster = cluster(arguments[0]);
        for (int at = 1; at < arguments.length; at++) {
            Class<?> judge = Class.forName(arguments[at]);
            List<Method> tests = Arrays.stream(judge.getDeclaredMethods()).filter(Judges::isTest)
                .sorted(Comparator.comparing(Method::getName)).collect(Collectors.toList());
            for (Method test : tests) {
                clear(arguments[0]);
                RESULTS.println(judge.getSimpleName() + "." + test.getName() + " " + outcome(judge, test, cluster));
                RESULTS.flush();
            }
        }
        Runtime.getRuntime().halt(0);
    }

    private static boolean isTest(Method method) {
        return Arrays.stream(method.getAnnotations()).map(Annotation::annotationType)
            .anyMatch(type -> MARKS.contains(type.getSimpleName()));
    }

    private static String outcome(Class<?> judge, Method test, ClusterInstance cluster) throws Exception {
        Throwable[] failure = {null};
        Thread thread = new Thread(() -> {
            try {
                Object object = made(judge, cluster);
                for (Method before : judge.getDeclaredMethods()) {
                    if (Arrays.stream(before.getAnnotations())
                        .anyMatch(each -> each.annotationType().getSimpleName().equals("BeforeEach"))) {
                        call(before, object, cluster);
                    }
                }
                call(test, object, cluster);
            } catch (Throwable thrown) {
                failure[0] = thrown;
            }
        });
        thread.setDaemon(true);
        thread.start();
        thread.join(TEST_MS);
        if (thread.isAlive()) {
            thread.interrupt();
            return "failed it did not end";
        }
        if (failure[0] == null) {
            return "ok";
        }
        Throwable cause = failure[0];
        while (cause instanceof InvocationTargetException || cause.getMessage() == null && cause.getCause() != null) {
            cause = cause.getCause();
        }
        return "failed " + (cause.getClass().getSimpleName() + ": " + cause.getMessage()).replaceAll("\\s+", " ");
    }

    private static Object made(Class<?> judge, ClusterInstance cluster) throws Exception {
        for (Constructor<?> constructor : judge.getDeclaredConstructors()) {
            constructor.setAccessible(true);
            if (constructor.getParameterCount() == 0) {
                return constructor.newInstance();
            }
            if (Arrays.equals(constructor.getParameterTypes(), new Class<?>[] {ClusterInstance.class})) {
                return constructor.newInstance(cluster);
            }
        }
        throw new IllegalStateException("no constructor");
    }

    private static void call(Method method, Object object, ClusterInstance cluster) throws Exception {
        method.setAccessible(true);
        Object[] arguments = new Object[method.getParameterCount()];
        Arrays.fill(arguments, cluster);
        method.invoke(object, arguments);
    }

    private static ClusterInstance cluster(String bootstrap) {
        InvocationHandler handler = (proxy, method, arguments) -> {
            switch (method.getName()) {
                case "type": return Type.CO_KRAFT;
                case "bootstrapServers": return bootstrap;
                case "brokerIds": return Set.of(1);
                case "controllerIds": return Set.of(1);
                case "clientListener": return new ListenerName("PLAINTEXT");
                case "brokerBoundPorts": return List.of(Integer.parseInt(bootstrap.split(":")[1]));
                case "waitForReadyBrokers": return null;
                case "ensureConsistentMetadata": return null;
                case "config":
                    return ClusterConfig.defaultBuilder().setTypes(Set.of(Type.CO_KRAFT)).build();
                case "brokers":  // there is none in this process
                case "controllers":
                case "aliveBrokers": return Map.of();
                // It waits until all brokers inside the process know a topic; here until the one that is asked does.
                case "waitTopicCreation": return known(bootstrap, (String) arguments[0], true);
                case "waitTopicDeletion": return known(bootstrap, (String) arguments[0], false);
                default:
                    if (method.isDefault()) {
                        return InvocationHandler.invokeDefault(proxy, method, arguments);
                    }
                    throw new UnsupportedOperationException("inside the broker: " + method.getName());
            }
        };
        return (ClusterInstance) Proxy.newProxyInstance(
            Judges.class.getClassLoader(), new Class<?>[] {ClusterInstance.class}, handler);
    }

    private static Object known(String bootstrap, String topic, boolean there) throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            long end = System.currentTimeMillis() + TEST_MS;
            while (admin.listTopics().names().get().contains(topic) != there) {
                if (System.currentTimeMillis() > end) {
                    throw new IllegalStateException(topic);
                }
                Thread.sleep(20);
            }
        }
        return null;
    }

    /** No topics, no quotas, and no groups but those whose members are still there. */
    private static void clear(String bootstrap) throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            Collection<ClientQuotaAlteration> removed = new ArrayList<>();
            admin.describeClientQuotas(ClientQuotaFilter.all()).entities().get().forEach((entity, values) ->
                removed.add(new ClientQuotaAlteration(entity, values.keySet().stream()
                    .map(key -> new ClientQuotaAlteration.Op(key, null)).collect(Collectors.toList()))));
            admin.alterClientQuotas(removed).all().get();
            long end = System.currentTimeMillis() + TEST_MS;
            while (!admin.describeClientQuotas(ClientQuotaFilter.all()).entities().get().isEmpty()
                && System.currentTimeMillis() < end) {
                Thread.sleep(20);
            }
            Set<String> topics = admin.listTopics().names().get();
            admin.deleteTopics(topics).all().get();
            while (!admin.listTopics().names().get().isEmpty() && System.currentTimeMillis() < end) {
                Thread.sleep(20);
            }
            Map<String, Object> groups = new HashMap<>();
            admin.listGroups().all().get().forEach(group -> groups.put(group.groupId(), group));
            admin.deleteConsumerGroups(groups.keySet()).deletedGroups().values().forEach(deleted -> {
                try {
                    deleted.get(10, TimeUnit.SECONDS);
                } catch (Exception stays) {
                    // It has members.
                }
            });
        }
    }
}
