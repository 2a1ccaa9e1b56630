package io.headrace.s3;

import io.delta.storage.HadoopFileSystemLogStore;
import java.io.ByteArrayOutputStream;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.Iterator;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.FilterFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RemoteIterator;
import org.apache.hadoop.fs.s3a.Constants;
import org.apache.hadoop.fs.s3a.Listing;
import org.apache.hadoop.fs.s3a.S3AFileStatus;
import org.apache.hadoop.fs.s3a.S3AFileSystem;
import org.apache.hadoop.fs.s3a.S3AUtils;
import org.apache.hadoop.fs.s3a.S3ListRequest;
import software.amazon.awssdk.services.s3.model.ListObjectsV2Request;

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
    if (fs instanceof S3Files) {
      ((S3Files) fs).writes(path);
    }
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
    List<FileStatus> found = list(fs, first);
    if (found.isEmpty() && !fs.exists(first.getParent())) {
      throw new FileNotFoundException("No such file or directory: " + first.getParent());
    }
    found.removeIf(one -> one.getPath().getName().compareTo(first.getName()) < 0);
    found.sort(Comparator.comparing(one -> one.getPath().getName()));
    return found.iterator();
  }

  /** The class of Delta that does this was compiled for an older version of Hadoop. */
  private static List<FileStatus> list(FileSystem fs, Path first) throws IOException {
    FileSystem store = fs;
    while (store instanceof FilterFileSystem) {
      store = ((FilterFileSystem) store).getRawFileSystem();
    }
    if (!(store instanceof S3AFileSystem)) {
      throw new IOException(first + " is not read by Hadoop's client of S3");
    }
    S3AFileSystem s3 = (S3AFileSystem) store;
    Path folder = first.getParent();
    int page = s3.getConf().getInt(Constants.MAX_PAGING_KEYS, Constants.DEFAULT_MAX_PAGING_KEYS);
    ListObjectsV2Request request =
        ListObjectsV2Request.builder()
            .bucket(s3.getBucket())
            .prefix(S3AUtils.maybeAddTrailingSlash(s3.pathToKey(folder)))
            .delimiter("/")
            .startAfter(before(s3.pathToKey(first)))
            .maxKeys(page)
            .build();
    RemoteIterator<S3AFileStatus> listing =
        s3.getListing()
            .createFileStatusListingIterator(
                folder,
                S3ListRequest.v2(request),
                any -> true,
                new Listing.AcceptAllButSelfAndS3nDirs(folder),
                s3.getActiveAuditSpan());
    List<FileStatus> found = new ArrayList<>();
    while (listing.hasNext()) {
      found.add(listing.next());
    }
    if (s3 instanceof S3Files) {
      ((S3Files) s3).listed(found);
    }
    return found;
  }

  /** A key that is less than this one, close to it: S3 lists the names after a key, without the key. */
  private static String before(String key) {
    int last = key.length() - 1;
    return key.substring(0, last) + (char) (key.charAt(last) - 1);
  }

  /** An object is visible when it is complete. */
  @Override
  public Boolean isPartialWriteVisible(Path path, Configuration conf) {
    return false;
  }
}
