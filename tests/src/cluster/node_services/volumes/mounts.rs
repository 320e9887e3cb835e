//! Finds the volumes that processes of the node have mounted.
//!
//! A container has its own mount namespace with the directory of each of its volumes, identified by device and path
//! within the device. The mounts end with the last process of the container.

use std::fs;
use std::path::{Path, PathBuf};

/// Whether a process in another mount namespace has the directory, or a part of it, mounted. `true` if that cannot be read.
pub(super) fn is_mounted_elsewhere(directory: &Path) -> bool {
    let own = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let Some(bytes) = DevicePath::resolve(directory, &own) else {
        return true;
    };
    let Ok(processes) = fs::read_dir("/proc") else {
        return true;
    };
    let here = mount_namespace(Path::new("/proc/self"));
    let others = processes.filter_map(|entry| Some(entry.ok()?.path()));
    others
        .filter(|process| is_process_dir(process))
        .filter(|process| mount_namespace(process).is_some_and(|there| Some(there) != here))
        .any(|process| {
            // A process that has ended meanwhile has nothing mounted.
            let mounts = fs::read_to_string(process.join("mountinfo")).unwrap_or_default();
            bytes.is_mounted(&mounts)
        })
}

fn is_process_dir(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The mount namespace of a process; `None` when it has ended.
fn mount_namespace(process: &Path) -> Option<PathBuf> {
    fs::read_link(process.join("ns/mnt")).ok()
}

/// Identifies a directory independently of where it is mounted.
#[derive(Debug, PartialEq, Eq)]
struct DevicePath {
    device: String,
    path: PathBuf,
}

impl DevicePath {
    /// Resolves a directory with the mounts of its namespace.
    fn resolve(directory: &Path, mounts: &str) -> Option<Self> {
        let around = mounts.lines().filter_map(MountEntry::parse);
        let around = around.filter(|mount| directory.starts_with(mount.mount_point));
        // Of two mounts at the same point the later one hides the earlier one, which is what `max_by_key` returns.
        let mount = around.max_by_key(|mount| mount.mount_point.components().count())?;
        let below = directory.strip_prefix(mount.mount_point).ok()?;
        Some(Self {
            device: mount.device.to_owned(),
            path: if below.as_os_str().is_empty() {
                mount.root.to_owned()
            } else {
                mount.root.join(below)
            },
        })
    }

    fn is_mounted(&self, mounts: &str) -> bool {
        let mut mounts = mounts.lines().filter_map(MountEntry::parse);
        mounts.any(|mount| mount.device == self.device && mount.root.starts_with(&self.path))
    }
}

/// A line of `mountinfo`: id, parent, device, root within the device, mount point.
struct MountEntry<'a> {
    device: &'a str,
    root: &'a Path,
    mount_point: &'a Path,
}

impl<'a> MountEntry<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut fields = line.split(' ').skip(2);
        Some(Self {
            device: fields.next()?,
            root: Path::new(fields.next()?),
            mount_point: Path::new(fields.next()?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: &str = "20 1 8:1 / / rw - ext4 /dev/sda rw\n\
        30 20 8:2 /cache /srv rw - ext4 /dev/sdb rw\n\
        40 30 0:50 / /srv/volumes/pvc-1 rw - tmpfs mainstay rw\n";

    fn resolve_in_node(directory: &str) -> DevicePath {
        DevicePath::resolve(Path::new(directory), NODE).unwrap()
    }

    #[test]
    fn memory_volume_is_identified_by_its_device() {
        let memory = resolve_in_node("/srv/volumes/pvc-1");
        assert!(memory.is_mounted("70 60 0:50 / /var/etcd/data rw - tmpfs mainstay rw\n"));
        assert!(memory.is_mounted("70 60 0:50 /part /data rw - tmpfs mainstay rw\n"));
        assert!(!memory.is_mounted("70 60 0:51 / /var/etcd/data rw - tmpfs mainstay rw\n"));
    }

    #[test]
    fn disk_volume_is_identified_by_device_and_path() {
        let disk = resolve_in_node("/srv/volumes/pvc-2");
        let expected = Path::new("/cache/volumes/pvc-2");
        assert_eq!((disk.device.as_str(), &*disk.path), ("8:2", expected));
        assert!(disk.is_mounted("70 60 8:2 /cache/volumes/pvc-2 /data rw - ext4 /dev/sdb rw\n"));
        assert!(!disk.is_mounted("70 60 8:2 /cache/volumes/pvc-3 /data rw - ext4 /dev/sdb rw\n"));
        assert!(!disk.is_mounted("30 20 8:2 /cache /srv rw - ext4 /dev/sdb rw\n"));
    }
}
