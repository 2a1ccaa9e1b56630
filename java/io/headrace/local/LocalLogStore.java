package io.headrace.local;

import io.delta.storage.HDFSLogStore;
import java.io.File;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.ChecksumFileSystem;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;

/** `spark.delta.logStore.file.impl`: the log of Delta tables on a local disk, as Delta's own class writes it. */
public class LocalLogStore extends HDFSLogStore {
  public LocalLogStore(Configuration conf) {
    super(conf);
  }

  /**
   * Looks only at the files from this one on. Delta's own class looks at all files of the log, and commits wait
   * meanwhile (`python -m bench.busy_log`).
   */
  @Override
  public Iterator<FileStatus> listFrom(Path path, Configuration conf) throws IOException {
    FileSystem fs = path.getFileSystem(conf);
    Path folder = fs.makeQualified(path).getParent();
    String[] names = fs instanceof LocalFileSystem ? names(((LocalFileSystem) fs).pathToFile(folder), path) : null;
    if (names == null) {
      // Its error names what is wrong with the folder.
      return super.listFrom(path, conf);
    }
    Arrays.sort(names);
    List<FileStatus> found = new ArrayList<>();
    for (String name : names) {
      try {
        found.add(fs.getFileStatus(new Path(folder, name)));
      } catch (FileNotFoundException deletedMeanwhile) {
        continue;
      }
    }
    return found.iterator();
  }

  private static String[] names(File folder, Path first) {
    return folder.list(
        (parent, name) ->
            name.compareTo(first.getName()) >= 0 && !ChecksumFileSystem.isChecksumFile(new Path(name)));
  }
}
