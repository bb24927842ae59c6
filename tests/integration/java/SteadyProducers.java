import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Producers that send one record after the other, so many or until the process is ended; each prints its number, the
 * record's and the milliseconds that it took, once it is acknowledged:
 * SteadyProducers BOOTSTRAP TOPIC COUNT [RECORDS [SETTING=VALUE...]]
 */
public final class SteadyProducers {
    private SteadyProducers() {
    }

    private static void send(String bootstrap, String topic, int producer, int records, Map<String, Object> more) {
        Map<String, Object> settings = new HashMap<>(more);
        settings.put("bootstrap.servers", bootstrap);
        settings.put("client.id", "steady-" + producer);
        settings.put("linger.ms", 0);
        StringSerializer text = new StringSerializer();
        try (KafkaProducer<String, String> client = new KafkaProducer<>(settings, text, text)) {
            for (int record = 0; record < records; record++) {
                long begun = System.nanoTime();
                client.send(new ProducerRecord<>(topic, 0, "" + producer, "" + record)).get();
                System.out.println(producer + " " + record + " " + (System.nanoTime() - begun) / 1_000_000);
                System.out.flush();
                Thread.sleep(100);
            }
        } catch (Exception failure) {
            System.out.println(producer + " failed " + failure);
            System.out.flush();
        }
    }

    public static void main(String[] arguments) throws Exception {
        int records = arguments.length > 3 ? Integer.parseInt(arguments[3]) : Integer.MAX_VALUE;
        Map<String, Object> more = new HashMap<>();
        for (int at = 4; at < arguments.length; at++) {
            String[] setting = arguments[at].split("=", 2);
            more.put(setting[0], setting[1]);
        }
        List<Thread> threads = new ArrayList<>();
        for (int producer = 0; producer < Integer.parseInt(arguments[2]); producer++) {
            int number = producer;
            threads.add(new Thread(() -> send(arguments[0], arguments[1], number, records, more)));
            threads.get(number).start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
    }
}
