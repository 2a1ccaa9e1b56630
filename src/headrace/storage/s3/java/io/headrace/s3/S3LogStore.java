package io.headrace.s3;

import io.delta.storage.HadoopFileSystemLogStore;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
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
      ConditionalCreate.write(fs, path, data.toByteArray());
      return;
    }
    FSDataOutputStream out = fs.create(path, true);
    boolean written = false;
    try {
      data.writeTo(out);
      written = true;
    } finally {
      if (!written) {
        out.abort();
      }
    }
    out.close();
  }

  /** An object is visible when it is complete. */
  @Override
  public Boolean isPartialWriteVisible(Path path, Configuration conf) {
    return false;
  }
}
