package io.headrace.local;

import java.io.IOException;
import java.nio.file.FileSystems;
import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermission;
import java.util.EnumSet;
import java.util.Set;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

/**
 * Hadoop's local files, without its processes. Hadoop starts `chmod` for each file that it creates, and `readlink`
 * twice for each rename, unless its native library is there.
 */
public class RawLocalFiles extends RawLocalFileSystem {
  private static final boolean IS_POSIX =
      FileSystems.getDefault().supportedFileAttributeViews().contains("posix");
  private static final int ALL = 0777;

  // From the highest bit to the lowest.
  private static final PosixFilePermission[] BITS = {
    PosixFilePermission.OWNER_READ,
    PosixFilePermission.OWNER_WRITE,
    PosixFilePermission.OWNER_EXECUTE,
    PosixFilePermission.GROUP_READ,
    PosixFilePermission.GROUP_WRITE,
    PosixFilePermission.GROUP_EXECUTE,
    PosixFilePermission.OTHERS_READ,
    PosixFilePermission.OTHERS_WRITE,
    PosixFilePermission.OTHERS_EXECUTE,
  };

  @Override
  public void setPermission(Path path, FsPermission permission) throws IOException {
    int mode = permission.toShort();
    // Java knows no sticky bit.
    if (!IS_POSIX || (mode & ~ALL) != 0) {
      super.setPermission(path, permission);
      return;
    }
    Set<PosixFilePermission> held = EnumSet.noneOf(PosixFilePermission.class);
    for (int bit = 0; bit < BITS.length; bit++) {
      if ((mode & (1 << (BITS.length - 1 - bit))) != 0) {
        held.add(BITS[bit]);
      }
    }
    Files.setPosixFilePermissions(pathToFile(path).toPath(), held);
  }

  @Override
  public FileStatus getFileLinkStatus(Path path) throws IOException {
    return Files.isSymbolicLink(pathToFile(path).toPath())
        ? super.getFileLinkStatus(path)
        : getFileStatus(path);
  }
}
