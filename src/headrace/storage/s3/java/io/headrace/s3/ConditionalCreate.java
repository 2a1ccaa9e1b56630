package io.headrace.s3;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.UUID;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * Creates an object if there is none with its name, in one step that S3 decides.
 *
 * <p>{@code FileSystem.create(path, false)} looks first and writes then, so two writers can both succeed. And a
 * writer that repeats an upload whose answer was lost meets its own object. So each write has an id in the
 * metadata of its object, and after a failure the object tells whose write it was.
 */
final class ConditionalCreate {
  private static final String CONDITIONAL = "fs.option.create.conditional.overwrite";
  private static final String ID = "headrace-write-id";
  private static final int ATTEMPTS = 5;
  private static final long FIRST_WAIT_MS = 100;

  private ConditionalCreate() {}

  /** Throws FileAlreadyExistsException if another write has made the object. */
  static void write(FileSystem fs, Path path, byte[] data) throws IOException {
    String id = UUID.randomUUID().toString();
    for (int attempt = 1; ; attempt++) {
      try {
        upload(fs, path, data, id);
        return;
      } catch (IOException failure) {
        String found = owner(fs, path, failure);
        if (id.equals(found)) {
          return;
        }
        if (found != null) {
          FileAlreadyExistsException exists = new FileAlreadyExistsException(path.toString());
          exists.initCause(failure);
          throw exists;
        }
        if (attempt == ATTEMPTS || !isConflict(failure)) {
          throw failure;
        }
      }
      pause(FIRST_WAIT_MS << attempt);
    }
  }

  private static void upload(FileSystem fs, Path path, byte[] data, String id) throws IOException {
    FSDataOutputStreamBuilder<?, ?> builder = fs.createFile(path);
    builder.recursive().overwrite(false);
    builder.must(CONDITIONAL, true).must("fs.s3a.create.header." + ID, id);
    FSDataOutputStream out = builder.build();
    if (!out.hasCapability(CONDITIONAL)) {
      out.abort();
      throw new IOException("this S3 client does not create " + path + " conditionally");
    }
    boolean written = false;
    try {
      out.write(data);
      written = true;
    } finally {
      if (!written) {
        out.abort();
      }
    }
    out.close();
  }

  /** The id of the write that has made the object, "" for a write without an id, null if there is no object. */
  private static String owner(FileSystem fs, Path path, IOException failure) throws IOException {
    try {
      byte[] id = fs.getXAttr(path, "header." + ID);
      return id == null ? "" : new String(id, StandardCharsets.UTF_8);
    } catch (FileNotFoundException missing) {
      return null;
    } catch (IOException unknown) {
      failure.addSuppressed(unknown);
      throw failure;
    }
  }

  /** Whether S3 has refused an upload because of another one at the same time that has not succeeded either. */
  private static boolean isConflict(Throwable failure) {
    for (Throwable one = failure; one != null; one = one.getCause()) {
      if (String.valueOf(one.getMessage()).contains("Status Code: 409")) {
        return true;
      }
    }
    return false;
  }

  private static void pause(long milliseconds) throws IOException {
    try {
      Thread.sleep(milliseconds);
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
      throw new InterruptedIOException("interrupted while waiting to repeat an upload");
    }
  }
}
