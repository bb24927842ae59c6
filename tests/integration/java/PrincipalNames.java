import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HexFormat;
import java.util.List;
import javax.security.auth.x500.X500Principal;
import org.apache.kafka.common.security.ssl.SslPrincipalMapper;

/**
 * Writes names as Java and Kafka do: PrincipalNames FILE. Each line of the file is "dn HEX", a distinguished name in
 * DER, or "map RULES NAME", both in Base64. A line of Base64 answers each, "!" one that is refused.
 */
public final class PrincipalNames {
    private PrincipalNames() {
    }

    public static void main(String[] arguments) throws Exception {
        List<String> answers = new ArrayList<>();
        for (String line : Files.readAllLines(Path.of(arguments[0]))) {
            String[] words = line.split(" ", -1);
            try {
                String name = words[0].equals("dn")
                    ? new X500Principal(HexFormat.of().parseHex(words[1])).getName()
                    : SslPrincipalMapper.fromRules(decoded(words[1])).getName(decoded(words[2]));
                answers.add("=" + Base64.getEncoder().encodeToString(name.getBytes(StandardCharsets.UTF_8)));
            } catch (Exception refused) {
                answers.add("!");
            }
        }
        System.out.println(String.join("\n", answers));
    }

    private static String decoded(String text) {
        return new String(Base64.getDecoder().decode(text), StandardCharsets.UTF_8);
    }
}
