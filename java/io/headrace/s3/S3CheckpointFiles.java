package io.headrace.s3;

import java.io.ByteArrayOutputStream;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.LongConsumer;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.BulkDelete;
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
  private static final Set<String> BATCH_LOGS = Set.of("offsets", "commits");

  private final CheckpointFileManager files;

  public S3CheckpointFiles(Path path, Configuration conf) {
    String scheme = path.toUri().getScheme();
    boolean isS3 = "s3".equals(scheme) || "s3a".equals(scheme);
    boolean isLog = BATCH_LOGS.contains(path.getName());
    files =
        !isS3
            ? new FileSystemBasedCheckpointFileManager(path, conf)
            : isLog ? new BatchLog(path, conf) : new OnS3(path, conf);
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
  private static class OnS3 extends FileSystemBasedCheckpointFileManager {
    final Path root;

    OnS3(Path root, Configuration conf) {
      super(root, conf);
      this.root = root;
    }

    @Override
    public CancellableFSDataOutputStream createAtomic(Path path, boolean overwriteIfPossible) {
      try {
        return overwriteIfPossible ? new Replaced(ConditionalCreate.replace(fs(), path)) : new Created(fs(), path, length -> {});
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
    static <T extends Throwable> RuntimeException unchecked(Throwable error) throws T {
      throw (T) error;
    }
  }

  /**
   * A log with a file for each batch. The query that has created the file of one batch is the only one that may
   * create the next: another query is refused there, or has made this one fail. So what it has written answers
   * the questions of Structured Streaming in each batch: is there the next file, and which are there.
   */
  private static final class BatchLog extends OnS3 {
    private static final int DELETED_TOGETHER = 100;

    private final Map<String, FileStatus> known = new HashMap<>();
    private final List<Path> deleted = new ArrayList<>();
    private final Set<String> created = new HashSet<>();
    private long last;
    private boolean isListed;

    BatchLog(Path path, Configuration conf) {
      super(path, conf);
    }

    @Override
    public CancellableFSDataOutputStream createAtomic(Path path, boolean overwriteIfPossible) {
      if (overwriteIfPossible) {
        return super.createAtomic(path, true);
      }
      return new Created(fs(), path, length -> remember(path, length));
    }

    private synchronized void remember(Path path, long length) {
      created.add(path.getName());
      last = number(path);
      // The batch before the last answers nothing any more.
      created.remove(String.valueOf(number(path) - 2));
      known.put(path.getName(), new FileStatus(length, false, 1, 0, System.currentTimeMillis(), path));
    }

    /** False for the batch after one of this query, without a request: it is created conditionally. */
    @Override
    public synchronized boolean exists(Path path) {
      if (created.contains(path.getName())) {
        return true;
      }
      return !created.contains(String.valueOf(number(path) - 1)) && super.exists(path);
    }

    @Override
    public synchronized FileStatus[] list(Path path, PathFilter filter) {
      if (created.isEmpty() || !path.getName().equals(root.getName())) {
        return super.list(path, filter);
      }
      if (!isListed) {
        for (FileStatus one : super.list(path, one -> !deleted.contains(one))) {
          known.putIfAbsent(one.getPath().getName(), one);
        }
        isListed = true;
      }
      return known.values().stream().filter(one -> filter.accept(one.getPath())).toArray(FileStatus[]::new);
    }

    /** Old batches, one with each new batch: they are deleted with one request for many of them. */
    @Override
    public synchronized void delete(Path path) {
      if (created.isEmpty() || number(path) < 0) {
        super.delete(path);
        return;
      }
      known.remove(path.getName());
      deleted.add(path);
      if (deleted.size() >= DELETED_TOGETHER) {
        if (!super.exists(new Path(root, String.valueOf(last - 1)))) {
          // While this process did not respond, another one has made the checkpoint anew: its files stay.
          deleted.clear();
          return;
        }
        try (BulkDelete bulk = fs().createBulkDelete(root)) {
          int page = Math.max(1, bulk.pageSize());
          for (int first = 0; first < deleted.size(); first += page) {
            bulk.bulkDelete(deleted.subList(first, Math.min(first + page, deleted.size())));
          }
        } catch (IOException error) {
          throw unchecked(error);
        }
        deleted.clear();
      }
    }

    private static long number(Path path) {
      String name = path.getName();
      return name.chars().allMatch(Character::isDigit) && name.length() < 19 ? Long.parseLong(name) : -1;
    }
  }

  /** Keeps the content until it is closed, so that an upload can be repeated. */
  private static final class Created extends CancellableFSDataOutputStream {
    private final FileSystem fs;
    private final Path path;
    private final LongConsumer written;
    private boolean hasEnded;

    Created(FileSystem fs, Path path, LongConsumer written) {
      super(new ByteArrayOutputStream());
      this.fs = fs;
      this.path = path;
      this.written = written;
    }

    @Override
    public void close() throws IOException {
      if (!hasEnded) {
        hasEnded = true;
        try {
          ByteArrayOutputStream data = (ByteArrayOutputStream) underlyingStream();
          ConditionalCreate.write(fs, path, data);
          written.accept(data.size());
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
