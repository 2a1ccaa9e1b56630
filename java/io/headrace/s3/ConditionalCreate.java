package io.headrace.s3;

import java.io.ByteArrayOutputStream;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.AccessDeniedException;
import java.nio.file.FileAlreadyExistsException;
import java.util.UUID;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.StreamCapabilities;
import org.apache.hadoop.fs.s3a.AWSServiceIOException;
import org.apache.hadoop.fs.s3a.Constants;

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
  private static final int CONFLICT = 409;
  private static final int ATTEMPTS = 5;
  private static final long FIRST_WAIT_MS = 100;

  private ConditionalCreate() {}

  /** Throws FileAlreadyExistsException if another write has made the object. */
  static void write(FileSystem fs, Path path, ByteArrayOutputStream data) throws IOException {
    check(fs, path);
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
        if (found != null && mayBeLost(failure)) {
          FileAlreadyExistsException exists = new FileAlreadyExistsException(path.toString());
          exists.initCause(failure);
          throw exists;
        }
        if (found != null || attempt == ATTEMPTS || statusOf(failure) != CONFLICT) {
          throw failure;
        }
      }
      pause(FIRST_WAIT_MS << attempt);
    }
  }

  /** Opens an object that replaces the one with its name; {@code abort()} of the stream leaves it as it was. */
  static FSDataOutputStream replace(FileSystem fs, Path path) throws IOException {
    FSDataOutputStreamBuilder<?, ?> builder = fs.createFile(path);
    builder.recursive().overwrite(true);
    // Without the requests that look whether the name is a folder.
    builder.opt(Constants.FS_S3A_CREATE_PERFORMANCE, true);
    return abortable(builder.build(), path);
  }

  private static void check(FileSystem fs, Path path) throws IOException {
    if (fs.hasPathCapability(path, Constants.FS_S3A_CREATE_PERFORMANCE_ENABLED)) {
      throw new IOException(
          "the setting fs.s3a.performance.flags has `create`, with which a second writer of "
              + path
              + " would replace the file of the first");
    }
    if (!fs.hasPathCapability(path, CONDITIONAL)) {
      throw new IOException("this client of S3 does not create " + path + " conditionally");
    }
  }

  private static void upload(FileSystem fs, Path path, ByteArrayOutputStream data, String id)
      throws IOException {
    FSDataOutputStreamBuilder<?, ?> builder = fs.createFile(path);
    builder.recursive().overwrite(false);
    builder.must(CONDITIONAL, true).must(Constants.FS_S3A_CREATE_HEADER + "." + ID, id);
    FSDataOutputStream out = abortable(builder.build(), path);
    boolean isWritten = false;
    try {
      if (!out.hasCapability(CONDITIONAL)) {
        throw new IOException("this client of S3 does not create " + path + " conditionally");
      }
      data.writeTo(out);
      isWritten = true;
    } finally {
      if (!isWritten) {
        out.abort();
      }
    }
    out.close();
  }

  private static FSDataOutputStream abortable(FSDataOutputStream out, Path path) throws IOException {
    if (!out.hasCapability(StreamCapabilities.ABORTABLE_STREAM)) {
      // Closing would write the object, so the stream is left as it is.
      throw new IOException("this client of S3 cannot abort the upload of " + path);
    }
    return out;
  }

  /** The id of the write that has made the object, "" for a write without an id, null if there is no object. */
  private static String owner(FileSystem fs, Path path, IOException failure) throws IOException {
    try {
      byte[] id = fs.getXAttr(path, Constants.XA_HEADER_PREFIX + ID);
      return id == null ? "" : new String(id, StandardCharsets.UTF_8);
    } catch (FileNotFoundException missing) {
      return null;
    } catch (IOException unknown) {
      failure.addSuppressed(unknown);
      throw failure;
    }
  }

  /** Whether the failure can mean that another write was first: not if S3 has refused the request itself. */
  private static boolean mayBeLost(IOException failure) {
    int status = statusOf(failure);
    boolean isRefused = status >= 400 && status < 500 && status != CONFLICT && status != 429;
    return !isRefused && !(failure instanceof AccessDeniedException);
  }

  /** The status of an answer of S3, or 0. 409: another write at the same time has not succeeded either. */
  private static int statusOf(IOException failure) {
    return failure instanceof AWSServiceIOException ? ((AWSServiceIOException) failure).statusCode() : 0;
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
