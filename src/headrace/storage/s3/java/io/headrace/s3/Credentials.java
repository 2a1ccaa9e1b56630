package io.headrace.s3;

import java.io.Serializable;
import java.time.Instant;

/** The credentials that Headrace has found, as they travel between the processes of one Spark application. */
final class Credentials implements Serializable {
  private static final long serialVersionUID = 1L;

  final String accessKeyId;
  final String secretAccessKey;
  final String sessionToken;
  final Instant expires;

  /** {@code sessionToken} and {@code expires} are null for credentials that do not expire. */
  Credentials(String accessKeyId, String secretAccessKey, String sessionToken, Instant expires) {
    this.accessKeyId = accessKeyId;
    this.secretAccessKey = secretAccessKey;
    this.sessionToken = sessionToken;
    this.expires = expires;
  }

  boolean isValidFor(long seconds) {
    return expires == null || Instant.now().plusSeconds(seconds).isBefore(expires);
  }

  /** Without the secrets: a log may hold it. */
  @Override
  public String toString() {
    return "Credentials(" + accessKeyId + ")";
  }
}
