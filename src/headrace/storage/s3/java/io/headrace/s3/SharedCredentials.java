package io.headrace.s3;

import java.net.URI;
import org.apache.hadoop.conf.Configuration;
import org.apache.spark.api.plugin.PluginContext;
import software.amazon.awssdk.auth.credentials.AwsBasicCredentials;
import software.amazon.awssdk.auth.credentials.AwsCredentials;
import software.amazon.awssdk.auth.credentials.AwsCredentialsProvider;
import software.amazon.awssdk.auth.credentials.AwsSessionCredentials;
import software.amazon.awssdk.core.exception.SdkClientException;

/** Gives S3A the credentials that Headrace has found: in the driver they are set, executors ask the driver. */
public class SharedCredentials implements AwsCredentialsProvider {
  private static final long MARGIN_S = 60;

  private static volatile Credentials credentials;
  private static volatile PluginContext driver;

  /** The constructor that S3A looks for. */
  public SharedCredentials(URI name, Configuration conf) {}

  /** Called by Headrace in the driver, again before the credentials expire. */
  public static void set(String accessKeyId, String secretAccessKey, String sessionToken, Long expiresMs) {
    credentials =
        new Credentials(
            accessKeyId,
            secretAccessKey,
            sessionToken,
            expiresMs == null ? null : java.time.Instant.ofEpochMilli(expiresMs));
  }

  static Credentials held() {
    return credentials;
  }

  static void askWith(PluginContext context) {
    driver = context;
  }

  @Override
  public AwsCredentials resolveCredentials() {
    Credentials found = credentials;
    if (driver != null && (found == null || !found.isValidFor(MARGIN_S))) {
      try {
        found = (Credentials) driver.ask(SharedCredentials.class.getName());
      } catch (Exception error) {
        throw SdkClientException.create("the driver did not give its credentials for S3", error);
      }
      credentials = found;
    }
    if (found == null) {
      throw SdkClientException.create("the driver has no credentials for S3");
    }
    return found.sessionToken == null
        ? AwsBasicCredentials.create(found.accessKeyId, found.secretAccessKey)
        : AwsSessionCredentials.create(found.accessKeyId, found.secretAccessKey, found.sessionToken);
  }
}
