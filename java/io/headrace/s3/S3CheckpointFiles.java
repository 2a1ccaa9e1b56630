package io.headrace.s3;

import java.io.ByteArrayOutputStream;
import java.io.FileNotFoundException;
import java.io.IOException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathFilter;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager;
import org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager;

/**
 * Writes the checkpoints of Structured Streaming: those on S3 without renames, others as Spark does. So one session
 * serves pipelines of both kinds.
 */
public class S3CheckpointFiles implements CheckpointFileManager {
  private final CheckpointFileManager files;

  public S3CheckpointFiles(Path path, Configuration conf) {
    String scheme = path.toUri().getScheme();
    boolean isS3 = "s3".equals(scheme) || "s3a".equals(scheme);
    files = isS3 ? new OnS3(path, conf) : new FileSystemBasedCheckpointFileManager(path, conf);
  }

  @Override
  public CancellableFSDataOutputStream createAtomic(Path path, boolean overwriteIfPossible) {
    return files.createAtomic(path, overwriteIfPossible);
  }

  @Override
  public FSDataInputStream open(Path path) {
    return files.open(path);
  }

  @Override
  public FileStatus[] list(Path path, PathFilter filter) {
    return files.list(path, filter);
  }

  @Override
  public void mkdirs(Path path) {
    files.mkdirs(path);
  }

  @Override
  public boolean exists(Path path) {
    return files.exists(path);
  }

  @Override
  public void delete(Path path) {
    files.delete(path);
  }

  @Override
  public boolean isLocal() {
    return files.isLocal();
  }

  @Override
  public Path createCheckpointDirectory() {
    return files.createCheckpointDirectory();
  }

  @Override
  public void close() {
    files.close();
  }

  /**
   * The files that fence a second driver (offsets, commits) are created conditionally; those that a repeated task
   * writes again (state) are replaced.
   */
  private static final class OnS3 extends FileSystemBasedCheckpointFileManager {
    private final Path root;

    OnS3(Path root, Configuration conf) {
      super(root, conf);
      this.root = root;
    }

    @Override
    public CancellableFSDataOutputStream createAtomic(Path path, boolean overwriteIfPossible) {
      try {
        return overwriteIfPossible ? new Replaced(ConditionalCreate.replace(fs(), path)) : new Created(fs(), path);
      } catch (IOException error) {
        throw unchecked(error);
      }
    }

    @Override
    public FileStatus[] list(Path path, PathFilter filter) {
      try {
        return fs().listStatus(path, filter);
      } catch (FileNotFoundException missing) {
        // S3 has no empty folders.
        return new FileStatus[0];
      } catch (IOException error) {
        throw unchecked(error);
      }
    }

    @Override
    public void mkdirs(Path path) {
      // Folders of S3 are parts of names.
    }

    @Override
    public Path createCheckpointDirectory() {
      return fs().makeQualified(root);
    }

    /** The methods of Scala declare no exceptions, and their callers expect an IOException as it is. */
    @SuppressWarnings("unchecked")
    private static <T extends Throwable> RuntimeException unchecked(Throwable error) throws T {
      throw (T) error;
    }
  }

  /** Keeps the content until it is closed, so that an upload can be repeated. */
  private static final class Created extends CancellableFSDataOutputStream {
    private final FileSystem fs;
    private final Path path;
    private boolean hasEnded;

    Created(FileSystem fs, Path path) {
      super(new ByteArrayOutputStream());
      this.fs = fs;
      this.path = path;
    }

    @Override
    public void close() throws IOException {
      if (!hasEnded) {
        hasEnded = true;
        try {
          ConditionalCreate.write(fs, path, (ByteArrayOutputStream) underlyingStream());
        } catch (java.nio.file.FileAlreadyExistsException exists) {
          // Structured Streaming knows Hadoop's exception of this name, and Delta knows the JDK's.
          FileAlreadyExistsException known = new FileAlreadyExistsException(path.toString());
          known.initCause(exists);
          throw known;
        }
      }
    }

    @Override
    public void cancel() {
      hasEnded = true;
    }
  }

  private static final class Replaced extends CancellableFSDataOutputStream {
    private boolean hasEnded;

    Replaced(FSDataOutputStream out) {
      super(out);
    }

    @Override
    public void close() throws IOException {
      if (!hasEnded) {
        hasEnded = true;
        underlyingStream().close();
      }
    }

    @Override
    public void cancel() {
      if (!hasEnded) {
        hasEnded = true;
        ((FSDataOutputStream) underlyingStream()).abort();
      }
    }
  }
}
