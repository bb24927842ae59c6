import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Clients that work all the time, half of them readers and half of them writers, on two partitions. Each prints its
 * client id and the time (Unix, ms) whenever something has worked: MisroutedClients BOOTSTRAP MARKED STEADY COUNT
 */
public final class MisroutedClients {
    private static final long PAUSE_MS = 500;

    private MisroutedClients() {
    }

    private static void worked(String clientId) {
        System.out.println(clientId + " " + System.currentTimeMillis());
        System.out.flush();
    }

    private static Map<String, Object> settings(String bootstrap, String clientId) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("client.id", clientId);
        return settings;
    }

    private static void read(String bootstrap, String topic, String clientId, int partition) throws Exception {
        Map<String, Object> settings = settings(bootstrap, clientId);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", false);
        settings.put("fetch.max.wait.ms", 100);
        StringDeserializer text = new StringDeserializer();
        List<TopicPartition> assigned = List.of(new TopicPartition(topic, partition));
        try (KafkaConsumer<String, String> client = new KafkaConsumer<>(settings, text, text)) {
            client.assign(assigned);
            while (true) {
                try {
                    client.seekToBeginning(assigned);
                    while (client.poll(Duration.ofMillis(200)).isEmpty()) {
                        // There is always a record to read, once the right broker is found.
                    }
                    worked(clientId);
                } catch (RuntimeException failure) {
                    System.err.println(clientId + " failed " + failure);
                }
                Thread.sleep(PAUSE_MS);
            }
        }
    }

    private static void write(String bootstrap, String topic, String clientId, int partition) throws Exception {
        Map<String, Object> settings = settings(bootstrap, clientId);
        settings.put("linger.ms", 0);
        settings.put("buffer.memory", 1_000_000);
        StringSerializer text = new StringSerializer();
        try (KafkaProducer<String, String> client = new KafkaProducer<>(settings, text, text)) {
            while (true) {
                try {
                    client.send(new ProducerRecord<>(topic, partition, clientId, "x")).get();
                    worked(clientId);
                } catch (java.util.concurrent.ExecutionException | RuntimeException failure) {
                    System.err.println(clientId + " failed " + failure);
                }
                Thread.sleep(PAUSE_MS);
            }
        }
    }

    private static void run(String[] arguments, int number) {
        int partition = number / 2 % 2;
        try {
            if (number % 2 == 0) {
                read(arguments[0], arguments[1], "reader-" + number, partition);
            } else {
                write(arguments[0], arguments[2], "writer-" + number, partition);
            }
        } catch (Exception failure) {
            System.err.println(number + " ended " + failure);
        }
    }

    public static void main(String[] arguments) throws Exception {
        List<Thread> threads = new ArrayList<>();
        for (int client = 0; client < Integer.parseInt(arguments[3]); client++) {
            int number = client;
            threads.add(new Thread(() -> run(arguments, number)));
            threads.get(number).start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
    }
}
