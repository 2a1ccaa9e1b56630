package io.headrace.s3;

import io.delta.storage.HadoopFileSystemLogStore;
import io.delta.storage.internal.S3LogStoreUtil;
import java.io.ByteArrayOutputStream;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Comparator;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/** Writes the log of Delta tables on S3, safe for several writers on several machines. */
public class S3LogStore extends HadoopFileSystemLogStore {
  public S3LogStore(Configuration conf) {
    super(conf);
  }

  @Override
  public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration conf)
      throws IOException {
    ByteArrayOutputStream data = new ByteArrayOutputStream();
    while (actions.hasNext()) {
      data.write(actions.next().getBytes(StandardCharsets.UTF_8));
      data.write('\n');
    }
    FileSystem fs = path.getFileSystem(conf);
    if (!overwrite) {
      ConditionalCreate.write(fs, path, data);
      return;
    }
    FSDataOutputStream out = ConditionalCreate.replace(fs, path);
    boolean isWritten = false;
    try {
      data.writeTo(out);
      isWritten = true;
    } finally {
      if (!isWritten) {
        out.abort();
      }
    }
    out.close();
  }

  /** Asks S3 only for names from this one on: the requests do not grow with the log. */
  @Override
  public Iterator<FileStatus> listFrom(Path path, Configuration conf) throws IOException {
    FileSystem fs = path.getFileSystem(conf);
    Path first = fs.makeQualified(path);
    FileStatus[] found = S3LogStoreUtil.s3ListFromArray(fs, first, first.getParent());
    if (found.length == 0 && !fs.exists(first.getParent())) {
      throw new FileNotFoundException("No such file or directory: " + first.getParent());
    }
    return Arrays.stream(found)
        .filter(one -> one.getPath().getName().compareTo(first.getName()) >= 0)
        .sorted(Comparator.comparing(one -> one.getPath().getName()))
        .iterator();
  }

  /** An object is visible when it is complete. */
  @Override
  public Boolean isPartialWriteVisible(Path path, Configuration conf) {
    return false;
  }
}
