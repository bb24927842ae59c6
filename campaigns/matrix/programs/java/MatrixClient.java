import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * The steps of the matrix with a Java client of any version from 2.8: MatrixClient BOOTSTRAP TOPIC STEP...
 *
 * It prints a line for each step: its name, then "ok", "lacks" (this version has no such thing) or "failed" and why.
 */
public final class MatrixClient {
    private static final int RECORDS = 20;
    private static final long STEP_MS = 60_000;
    private static final PrintStream RESULTS = System.out;
    private static final ByteArrayOutputStream PRINTED = new ByteArrayOutputStream();

    private static String bootstrap;
    private static String topic;

    private MatrixClient() {
    }

    /** The tool ended with this code. */
    private static final class Ended extends RuntimeException {
        Ended(int code) {
            super("the tool ended with " + code);
        }
    }

    /** This version has no such thing. */
    private static final class Lacks extends RuntimeException {
    }

    public static void main(String[] arguments) throws Exception {
        bootstrap = arguments[0];
        topic = arguments[1];
        // Tools print to the standard output, and end the process.
        System.setOut(new PrintStream(PRINTED, true));
        surviveTools();
        for (int at = 2; at < arguments.length; at++) {
            String step = arguments[at];
            RESULTS.println(step + " " + outcome(step));
            RESULTS.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    /** A tool that ends throws instead. The class that ends it has moved within 4.x. */
    private static void surviveTools() throws Exception {
        Class<?> exit;
        try {
            exit = Class.forName("org.apache.kafka.common.utils.internals.Exit");
        } catch (ClassNotFoundException before) {
            exit = Class.forName("org.apache.kafka.common.utils.Exit");
        }
        Class<?> procedure = Class.forName(exit.getName() + "$Procedure");
        Object thrown = Proxy.newProxyInstance(MatrixClient.class.getClassLoader(), new Class<?>[] {procedure},
            (proxy, method, arguments) -> {
                throw new Ended((Integer) arguments[0]);
            });
        exit.getMethod("setExitProcedure", procedure).invoke(null, thrown);
    }

    private static String outcome(String step) {
        try {
            run(step);
            return "ok";
        } catch (Lacks lacks) {
            return "lacks";
        } catch (Throwable failure) {
            Throwable cause = failure;
            while (cause.getCause() != null) {
                cause = cause.getCause();
            }
            if (cause instanceof ClassNotFoundException && String.valueOf(cause.getMessage()).contains("Step")) {
                return "lacks";
            }
            String text = cause.getClass().getSimpleName() + ": " + cause.getMessage();
            return "failed " + text.replaceAll("\\s+", " ");
        }
    }

    private static void run(String step) throws Exception {
        switch (step) {
            case "admin": admin(); break;
            case "produce": produce(); break;
            case "consume": consume(); break;
            case "classic": group("classic"); break;
            case "consumer": group("consumer"); break;
            case "share": elsewhere("ShareStep"); break;
            case "streams-classic": elsewhere("StreamsStep", "classic"); break;
            case "streams": elsewhere("StreamsStep", "streams"); break;
            case "transactions": transactions(); break;
            case "quotas": quotas(); break;
            default: throw new IllegalArgumentException(step);
        }
    }

    /** A step with classes that only some versions have: its class is there if it could be compiled. */
    private static void elsewhere(String name, String... more) throws Exception {
        List<String> arguments = new ArrayList<>(List.of(bootstrap, topic));
        Collections.addAll(arguments, more);
        Object answer;
        try {
            answer = Class.forName(name).getMethod("run", String[].class)
                .invoke(null, (Object) arguments.toArray(new String[0]));
        } catch (InvocationTargetException failed) {
            throw (Exception) failed.getCause();
        }
        if ("lacks".equals(answer)) {
            throw new Lacks();
        }
    }

    private static Map<String, Object> settings(String name) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("client.id", topic + "-" + name);
        return settings;
    }

    private static KafkaProducer<String, String> producer(Map<String, Object> settings) {
        settings.put("delivery.timeout.ms", "60000");
        settings.put("linger.ms", "0");
        settings.put("acks", "all");
        return new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
    }

    private static KafkaConsumer<String, String> consumer(Map<String, Object> settings) {
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        return new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
    }

    private static void check(boolean holds, String otherwise) {
        if (!holds) {
            throw new IllegalStateException(otherwise);
        }
    }

    private static void admin() throws Exception {
        String made = topic + "-admin";
        try (Admin admin = Admin.create(settings("admin"))) {
            admin.createTopics(List.of(new NewTopic(made, 1, (short) 1))).all().get();
            long end = System.currentTimeMillis() + STEP_MS;
            while (!admin.listTopics().names().get().contains(made) && System.currentTimeMillis() < end) {
                Thread.sleep(50);  // brokers hear of it a moment after the answer
            }
            ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, made);
            AlterConfigOp operation = new AlterConfigOp(
                new ConfigEntry("retention.ms", "123456"), AlterConfigOp.OpType.SET);
            Map<ConfigResource, Collection<AlterConfigOp>> altered = Map.of(resource, List.of(operation));
            admin.incrementalAlterConfigs(altered).all().get();
            admin.createPartitions(Map.of(made, NewPartitions.increaseTo(3))).all().get();
            check(!admin.describeCluster().nodes().get().isEmpty(), "no nodes");
            admin.listConsumerGroups().all().get();
            String found = "";
            while (!found.equals("123456") && System.currentTimeMillis() < end) {
                found = admin.describeConfigs(List.of(resource)).all().get().get(resource).get("retention.ms").value();
            }
            check(found.equals("123456"), "retention.ms is " + found);
            admin.deleteTopics(List.of(made)).all().get();
        }
    }

    private static void produce() throws Exception {
        try (KafkaProducer<String, String> producer = producer(settings("produce"))) {
            for (int number = 0; number < RECORDS; number++) {
                producer.send(new ProducerRecord<>(topic, number % 2, "k", "" + number)).get();
            }
        }
    }

    private static List<TopicPartition> partitions() {
        return List.of(new TopicPartition(topic, 0), new TopicPartition(topic, 1));
    }

    private static Set<Integer> read(KafkaConsumer<String, String> consumer, int wanted) {
        Set<Integer> found = new TreeSet<>();
        long end = System.currentTimeMillis() + STEP_MS;
        while (found.size() < wanted && System.currentTimeMillis() < end) {
            for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                found.add(Integer.parseInt(record.value()));
            }
        }
        check(found.size() == wanted, "read " + found);
        return found;
    }

    private static void consume() {
        try (KafkaConsumer<String, String> consumer = consumer(settings("consume"))) {
            consumer.assign(partitions());
            consumer.seekToBeginning(partitions());
            read(consumer, RECORDS);
        }
    }

    private static void group(String protocol) {
        Map<String, Object> settings = settings(protocol);
        settings.put("group.id", topic + "-" + protocol);
        if (ConsumerConfig.configNames().contains("group.protocol")) {
            settings.put("group.protocol", protocol);
        } else if (!protocol.equals("classic")) {
            throw new Lacks();
        }
        settings.put("default.api.timeout.ms", (int) STEP_MS);
        try (KafkaConsumer<String, String> consumer = consumer(settings)) {
            consumer.subscribe(List.of(topic));
            read(consumer, RECORDS);
            consumer.commitSync();
            long sum = 0;
            for (OffsetAndMetadata offset : consumer.committed(Set.copyOf(partitions())).values()) {
                sum += offset.offset();
            }
            check(sum == RECORDS, "committed " + sum);
        }
    }

    /** Reads what the step "produce" wrote, within a transaction that writes it elsewhere; and one that is aborted. */
    private static void transactions() throws Exception {
        Map<String, Object> writing = settings("transactions");
        writing.put("transactional.id", topic + "-transactions");
        Map<String, Object> reading = settings("transactions-reader");
        reading.put("group.id", topic + "-transactions");
        Map<String, Object> checking = settings("transactions-check");
        checking.put("isolation.level", "read_committed");
        TopicPartition target = new TopicPartition(topic + "-target", 0);
        try (KafkaProducer<String, String> producer = producer(writing);
             KafkaConsumer<String, String> consumer = consumer(reading);
             KafkaConsumer<String, String> checker = consumer(checking)) {
            producer.initTransactions();
            consumer.subscribe(List.of(topic));
            producer.beginTransaction();
            for (int number : read(consumer, RECORDS)) {
                producer.send(new ProducerRecord<>(target.topic(), 0, "k", "" + number));
            }
            Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
            for (TopicPartition each : partitions()) {
                offsets.put(each, new OffsetAndMetadata(consumer.position(each)));
            }
            producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
            producer.commitTransaction();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(target.topic(), 0, "k", "1000")).get();
            producer.abortTransaction();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(target.topic(), 0, "k", "2000"));
            producer.commitTransaction();
            checker.assign(List.of(target));
            checker.seekToBeginning(List.of(target));
            Set<Integer> found = read(checker, RECORDS + 1);
            check(found.contains(2000) && !found.contains(1000), "read " + found);
        }
    }

    private static String configs(String... arguments) throws Exception {
        List<String> all = new ArrayList<>(List.of("--bootstrap-server", bootstrap));
        Collections.addAll(all, arguments);
        Class<?> tool;
        try {
            tool = Class.forName("org.apache.kafka.tools.ConfigCommand");
        } catch (ClassNotFoundException before) {
            tool = Class.forName("kafka.admin.ConfigCommand");
        }
        Method main = tool.getMethod("main", String[].class);
        PRINTED.reset();
        try {
            main.invoke(null, (Object) all.toArray(new String[0]));
        } catch (InvocationTargetException thrown) {
            check(thrown.getCause() instanceof Ended && thrown.getCause().getMessage().endsWith(" 0"),
                thrown.getCause() + " " + PRINTED);
        }
        return PRINTED.toString();
    }

    private static void describe(String type, String name, String key, boolean there) throws Exception {
        long end = System.currentTimeMillis() + STEP_MS;
        String printed;
        do {
            printed = configs("--describe", "--entity-type", type, "--entity-name", name);
        } while (printed.contains(key) != there && System.currentTimeMillis() < end);
        check(printed.contains(key) == there, type + ": " + printed);
    }

    /** Sets a quota of each kind of entity with this version's kafka-configs, is throttled by one, removes them. */
    private static void quotas() throws Exception {
        String client = topic + "-limited";
        String[][] quotas = {
            {"clients", client, "producer_byte_rate", "1000"},
            {"users", topic + "-user", "consumer_byte_rate", "2000"},
            {"ips", "127.9.9.9", "connection_creation_rate", "500"},
        };
        for (String[] quota : quotas) {
            configs("--alter", "--entity-type", quota[0], "--entity-name", quota[1],
                "--add-config", quota[2] + "=" + quota[3]);
            describe(quota[0], quota[1], quota[2] + "=" + quota[3], true);
        }
        Map<String, Object> settings = settings("limited");
        double throttled = 0;
        try (KafkaProducer<String, String> producer = producer(settings)) {
            long end = System.currentTimeMillis() + STEP_MS;
            while (!(throttled > 0) && System.currentTimeMillis() < end) {
                producer.send(new ProducerRecord<>(topic + "-target", 0, "k", "x".repeat(15_000))).get();
                throttled = producer.metrics().entrySet().stream()
                    .filter(each -> each.getKey().name().equals("produce-throttle-time-max"))
                    .mapToDouble(each -> (Double) each.getValue().metricValue())
                    .filter(value -> !Double.isNaN(value)).max().orElse(0);
            }
            producer.close(Duration.ZERO);
        }
        check(throttled > 0, "not throttled");
        for (String[] quota : quotas) {
            configs("--alter", "--entity-type", quota[0], "--entity-name", quota[1], "--delete-config", quota[2]);
            describe(quota[0], quota[1], quota[2], false);
        }
    }
}
