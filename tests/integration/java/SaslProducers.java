import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Producers that log in, all at the same time, and for each a line "client id, delivered, tried, error" with tabs:
 * SaslProducers TOPIC (CLIENT_ID MECHANISM USER PASSWORD RECORDS EVERY_MS CA BOOTSTRAP GIVE_UP_MS)...
 * For OAUTHBEARER an empty password stands for a token that does not name the user; an empty CA for no TLS.
 */
public final class SaslProducers {
    private SaslProducers() {
    }

    private static String login(String mechanism, String user, String password) {
        String modules = "org.apache.kafka.common.security.";
        if (mechanism.equals("PLAIN")) {
            return modules + "plain.PlainLoginModule required username=\"" + user + "\" password=\"" + password + "\";";
        }
        if (mechanism.startsWith("SCRAM")) {
            return modules + "scram.ScramLoginModule required username=\"" + user + "\" password=\"" + password + "\";";
        }
        String claim = password.isEmpty() ? "other" : "sub";
        return modules + "oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_" + claim + "=\"" + user
            + "\" unsecuredLoginPrincipalClaimName=\"" + claim + "\";";
    }

    private static String produce(String topic, List<String> job) throws Exception {
        String giveUpMs = job.get(8);
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", job.get(7));
        settings.put("client.id", job.get(0));
        settings.put("security.protocol", job.get(6).isEmpty() ? "SASL_PLAINTEXT" : "SASL_SSL");
        if (!job.get(6).isEmpty()) {
            settings.put("ssl.truststore.type", "PEM");
            settings.put("ssl.truststore.location", job.get(6));
        }
        settings.put("sasl.mechanism", job.get(1));
        settings.put("sasl.jaas.config", login(job.get(1), job.get(2), job.get(3)));
        settings.put("max.block.ms", giveUpMs);
        settings.put("linger.ms", 0);
        settings.put("request.timeout.ms", giveUpMs);
        settings.put("delivery.timeout.ms", giveUpMs);
        int tried = Integer.parseInt(job.get(4));
        long everyMs = Long.parseLong(job.get(5));
        int delivered = 0;
        String error = "";
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            for (int at = 0; at < tried; at++) {
                if (at > 0) {
                    Thread.sleep(everyMs);
                }
                producer.send(new ProducerRecord<>(topic, "record")).get();
                delivered++;
            }
        } catch (java.util.concurrent.ExecutionException | RuntimeException failure) {
            Throwable cause = failure.getCause() == null ? failure : failure.getCause();
            error = cause.getClass().getSimpleName();
        }
        return job.get(0) + "\t" + delivered + "\t" + tried + "\t" + error;
    }

    public static void main(String[] arguments) throws Exception {
        List<String> given = List.of(arguments);
        ExecutorService threads = Executors.newCachedThreadPool();
        List<Future<String>> lines = new ArrayList<>();
        for (int at = 1; at < given.size(); at += 9) {
            List<String> job = given.subList(at, at + 9);
            Callable<String> one = () -> produce(given.get(0), job);
            lines.add(threads.submit(one));
        }
        for (Future<String> line : lines) {
            System.out.println(line.get());
        }
        threads.shutdown();
    }
}
