package io.headrace.local;

import org.apache.hadoop.fs.LocalFileSystem;

/** `fs.file.impl`: local files with checksums, as Hadoop's own, on {@link RawLocalFiles}. */
public class LocalFiles extends LocalFileSystem {
  public LocalFiles() {
    super(new RawLocalFiles());
  }
}
