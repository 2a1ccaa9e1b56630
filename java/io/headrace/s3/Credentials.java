package io.headrace.s3;

import java.time.Instant;

/** The credentials of a bucket that Headrace has found. */
final class Credentials {
  final String accessKeyId;
  final String secretAccessKey;
  final String sessionToken;
  final Long expiresMs;

  /** {@code sessionToken} and {@code expiresMs} are null for credentials that do not expire. */
  Credentials(String accessKeyId, String secretAccessKey, String sessionToken, Long expiresMs) {
    this.accessKeyId = accessKeyId;
    this.secretAccessKey = secretAccessKey;
    this.sessionToken = sessionToken;
    this.expiresMs = expiresMs;
  }

  /** Spark's messages between processes hold classes of the JDK only: others can be out of their sight. */
  static Credentials fromMessage(Object message) {
    String[] parts = (String[]) message;
    return parts == null
        ? null
        : new Credentials(parts[0], parts[1], parts[2], parts[3] == null ? null : Long.valueOf(parts[3]));
  }

  String[] toMessage() {
    String expires = expiresMs == null ? null : expiresMs.toString();
    return new String[] {accessKeyId, secretAccessKey, sessionToken, expires};
  }

  boolean isValidFor(long seconds) {
    return expiresMs == null || Instant.now().plusSeconds(seconds).toEpochMilli() < expiresMs;
  }

  /** Without the secrets: a log may hold it. */
  @Override
  public String toString() {
    return "Credentials(" + accessKeyId + ")";
  }
}
