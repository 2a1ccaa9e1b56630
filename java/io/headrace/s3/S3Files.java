package io.headrace.s3;

import static org.apache.hadoop.util.functional.FutureIO.awaitFuture;

import java.io.IOException;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.regex.Pattern;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.impl.OpenFileParameters;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.fs.s3a.Constants;
import org.apache.hadoop.fs.s3a.S3AFileSystem;
import org.apache.hadoop.util.Progressable;

/**
 * Hadoop's client of S3, which writes the data files of tables with one request each, and reads them and the
 * commits of a log with one. The names of data files have a random id of their own, so nothing has to be asked
 * before the upload, and the writer knows the size afterwards. What a listing says of a commit is enough to read
 * it: S3 refuses the read if the object is another one meanwhile.
 */
public class S3Files extends S3AFileSystem {
  private static final Pattern DATA_FILE =
      Pattern.compile("(part|cdc)-\\d+-\\p{XDigit}{8}(-\\p{XDigit}{4}){3}-\\p{XDigit}{12}[.-].*parquet");

  private static final int REMEMBERED = 5000;
  private static final long LATELY_MS = 600_000;

  private final Map<Path, FileStatus> written = remembering();
  private final Map<Path, FileStatus> commits = remembering();

  private static Map<Path, FileStatus> remembering() {
    return Collections.synchronizedMap(
        new LinkedHashMap<>() {
          private static final long serialVersionUID = 1;

          @Override
          protected boolean removeEldestEntry(Map.Entry<Path, FileStatus> eldest) {
            return size() > REMEMBERED;
          }
        });
  }

  @Override
  public FSDataOutputStream create(
      Path path,
      FsPermission permission,
      boolean overwrite,
      int bufferSize,
      short replication,
      long blockSize,
      Progressable progress)
      throws IOException {
    if (!isDataFile(path)) {
      return super.create(path, permission, overwrite, bufferSize, replication, blockSize, progress);
    }
    FSDataOutputStreamBuilder<?, ?> builder = createFile(path);
    builder.recursive().overwrite(true).opt(Constants.FS_S3A_CREATE_PERFORMANCE, true);
    return new FSDataOutputStream(builder.build(), null) {
      @Override
      public void close() throws IOException {
        super.close();
        remember(path, getPos());
      }
    };
  }

  /** Spark and Delta each ask for the size of a data file that they have just written, or compact soon. */
  @Override
  public FileStatus getFileStatus(Path path) throws IOException {
    FileStatus known = written.get(makeQualified(path));
    boolean isNew = known != null && System.currentTimeMillis() - known.getModificationTime() < LATELY_MS;
    return isNew ? known : super.getFileStatus(path);
  }

  @Override
  public FSDataInputStream open(Path path, int bufferSize) throws IOException {
    FileStatus known = find(path);
    return known == null ? super.open(path, bufferSize) : awaitFuture(openFile(path).withFileStatus(known).build());
  }

  @Override
  public CompletableFuture<FSDataInputStream> openFileWithOptions(Path path, OpenFileParameters parameters)
      throws IOException {
    FileStatus known = parameters.getStatus() == null ? find(path) : null;
    return super.openFileWithOptions(path, known == null ? parameters : parameters.withStatus(known));
  }

  private FileStatus find(Path path) {
    Path whole = makeQualified(path);
    return commits.getOrDefault(whole, written.get(whole));
  }

  /** Takes note of the commits that a listing has found. */
  void listed(List<? extends FileStatus> found) {
    for (FileStatus one : found) {
      if (one.getPath().getName().endsWith(".json")) {
        commits.put(makeQualified(one.getPath()), one);
      }
    }
  }

  @Override
  public boolean delete(Path path, boolean recursive) throws IOException {
    written.clear();
    commits.clear();
    return super.delete(path, recursive);
  }

  /** Forgets a commit that is written, such as the first one of a table that is created anew. */
  void writes(Path path) {
    commits.remove(makeQualified(path));
  }

  private void remember(Path path, long length) {
    Path whole = makeQualified(path);
    long now = System.currentTimeMillis();
    written.put(whole, new FileStatus(length, false, 1, getDefaultBlockSize(whole), now, whole));
  }

  /** Not the files of Hadoop's own committers, whose ids are those of a whole job. */
  private static boolean isDataFile(Path path) {
    String folder = String.valueOf(path.getParent());
    return DATA_FILE.matcher(path.getName()).matches()
        && !folder.contains("/_temporary")
        && !folder.contains("/__magic");
  }
}
