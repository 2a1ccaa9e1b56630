package io.headrace.s3;

import java.net.URI;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.hadoop.conf.Configuration;
import org.apache.spark.api.plugin.PluginContext;
import software.amazon.awssdk.auth.credentials.AwsBasicCredentials;
import software.amazon.awssdk.auth.credentials.AwsCredentials;
import software.amazon.awssdk.auth.credentials.AwsCredentialsProvider;
import software.amazon.awssdk.auth.credentials.AwsSessionCredentials;
import software.amazon.awssdk.core.exception.SdkClientException;

/** Gives S3A the credentials that Headrace has found: in the driver they are set, executors ask the driver. */
public class SharedCredentials implements AwsCredentialsProvider {
  /** The name under which the credentials of all buckets without their own are held. */
  public static final String ANY_BUCKET = "*";

  private static final long MARGIN_S = 60;
  private static final Map<String, Credentials> HELD = new ConcurrentHashMap<>();
  private static volatile PluginContext driver;

  private final String bucket;

  /** The constructor that S3A looks for. */
  public SharedCredentials(URI name, Configuration conf) {
    bucket = name.getHost();
  }

  /** Called by Headrace in the driver, again before the credentials expire. */
  public static void set(
      String bucket, String accessKeyId, String secretAccessKey, String sessionToken, Long expiresMs) {
    HELD.put(bucket, new Credentials(accessKeyId, secretAccessKey, sessionToken, expiresMs));
  }

  static Credentials find(String bucket) {
    Credentials found = HELD.get(bucket);
    return found == null ? HELD.get(ANY_BUCKET) : found;
  }

  /** In an executor: {@code context} reaches the driver. */
  static void askWith(PluginContext context) {
    driver = context;
  }

  @Override
  public AwsCredentials resolveCredentials() {
    Credentials found = find(bucket);
    if (driver != null && (found == null || !found.isValidFor(MARGIN_S))) {
      found = ask();
    }
    if (found == null) {
      throw SdkClientException.create("Headrace has given no credentials for the bucket " + bucket);
    }
    return found.sessionToken == null
        ? AwsBasicCredentials.create(found.accessKeyId, found.secretAccessKey)
        : AwsSessionCredentials.create(found.accessKeyId, found.secretAccessKey, found.sessionToken);
  }

  private Credentials ask() {
    Credentials found;
    try {
      found = Credentials.fromMessage(driver.ask(bucket));
    } catch (Exception error) {
      throw SdkClientException.create("the driver did not give its credentials for S3", error);
    }
    if (found != null) {
      HELD.put(bucket, found);
    }
    return found;
  }
}
