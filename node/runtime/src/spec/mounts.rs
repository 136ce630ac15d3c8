//! The mounts of a container, in their order. Pure.

use std::path::{Path, PathBuf};

use corten_cri::v1;

use super::{Mount, MountSource, Propagation};
use crate::Error;
use crate::id_mapping::Mapping;

/// A function that finds the layers of an image: their folder, and their names in it, highest first.
pub(crate) type FindLayers<'a> = &'a dyn Fn(&str) -> Result<(PathBuf, Vec<String>), Error>;

/// The input that mounts depend on.
pub(crate) struct Context<'a> {
    pub privileged: bool,
    pub readonly_rootfs: bool,
    /// The sandbox's own hosts, hostname and resolv.conf.
    pub sandbox_files: &'a Path,
    /// Shared memory of the pod, or the node's.
    pub shared_memory: &'a Path,
    /// The function that finds the layers of an image volume.
    pub image_layers: FindLayers<'a>,
    /// The id mapping of a pod with a user namespace.
    pub users: Option<Mapping>,
    /// Whether device nodes in volumes cannot be opened.
    pub nodev: bool,
}

/// Returns system mounts, then the sandbox's files, then the pod's volumes from short paths to long ones.
pub(crate) fn decide(requested: &[v1::Mount], context: &Context<'_>) -> Result<Vec<Mount>, Error> {
    let is_requested = |path: &str| requested.iter().any(|mount| clean(&mount.container_path) == clean(path));
    let mut mounts: Vec<Mount> =
        system_mounts(context).into_iter().filter(|mount| !is_requested(&mount.destination)).collect();
    for (file, destination) in
        [("hostname", "/etc/hostname"), ("hosts", "/etc/hosts"), ("resolv.conf", "/etc/resolv.conf")]
    {
        if !is_requested(destination) {
            let source = context.sandbox_files.join(file);
            mounts.push(bind(source, destination, context.readonly_rootfs));
        }
    }
    if !is_requested("/dev/shm") {
        mounts.push(bind(context.shared_memory.to_path_buf(), "/dev/shm", false));
    }
    let mut volumes = requested.iter().map(|mount| volume(mount, context)).collect::<Result<Vec<_>, _>>()?;
    volumes.sort_by_key(|mount| Path::new(&mount.destination).components().count());
    mounts.extend(volumes);
    Ok(mounts)
}

fn system_mounts(context: &Context<'_>) -> Vec<Mount> {
    let readonly = !context.privileged;
    // The node's mounts for the pod belong to the pod's root.
    let first = context.users.map_or((0, 0), |users| (users.uid, users.gid));
    let owner = context.users.map(|users| format!(",uid={},gid={}", users.uid, users.gid)).unwrap_or_default();
    vec![
        filesystem("/proc", "proc", "", Mount { nodev: true, noexec: true, ..restricted() }),
        filesystem(
            "/dev",
            "tmpfs",
            &format!("mode=755,size=65536k{owner}"),
            Mount { nodev: false, noexec: false, ..restricted() },
        ),
        filesystem(
            "/dev/pts",
            "devpts",
            &format!("newinstance,ptmxmode=0666,mode=0620,gid={}", 5 + first.1),
            Mount { nodev: false, ..restricted() },
        ),
        filesystem("/dev/mqueue", "mqueue", "", restricted()),
        filesystem("/sys", "sysfs", "", Mount { readonly, ..restricted() }),
        Mount { destination: "/sys/fs/cgroup".into(), source: MountSource::Cgroups, readonly, ..restricted() },
    ]
}

fn restricted() -> Mount {
    Mount {
        destination: String::new(),
        source: MountSource::Cgroups,
        readonly: false,
        recursive_readonly: false,
        nosuid: true,
        nodev: true,
        noexec: true,
        mapped: false,
    }
}

fn filesystem(destination: &str, kind: &str, options: &str, mount: Mount) -> Mount {
    let source = MountSource::Filesystem { kind: kind.into(), options: options.into() };
    Mount { destination: destination.into(), source, ..mount }
}

fn bind(path: PathBuf, destination: &str, readonly: bool) -> Mount {
    let source = MountSource::Bind { path, propagation: Propagation::Private };
    let open = Mount { nosuid: false, nodev: false, noexec: false, ..restricted() };
    Mount { destination: destination.into(), source, readonly, ..open }
}

fn volume(requested: &v1::Mount, context: &Context<'_>) -> Result<Mount, Error> {
    let destination = clean(&requested.container_path);
    if destination == "/" {
        return Err(Error::Invalid("a volume cannot be mounted on /".into()));
    }
    let mut mount = bind(PathBuf::from(&requested.host_path), &destination, requested.readonly);
    mount.recursive_readonly = requested.recursive_read_only;
    mount.mapped = is_mapped(requested, context.users)?;
    mount.nodev = context.nodev;
    if requested.recursive_read_only && !requested.readonly {
        return Err(Error::Invalid("recursive read-only mount conflicts with RW mount".into()));
    }
    // CRI: a mount below that came later would be writable.
    if requested.recursive_read_only && requested.propagation() != v1::MountPropagation::PropagationPrivate {
        let propagation = requested.propagation().as_str_name();
        return Err(Error::Invalid(format!("recursive read-only mount conflicts with {propagation}")));
    }
    if let Some(image) = requested.image.as_ref().filter(|image| !image.image.is_empty()) {
        let (layers_folder, lower) = (context.image_layers)(&image.image)?;
        let sub_path = requested.image_sub_path.clone();
        mount.source = MountSource::Image { layers_folder, lower, sub_path };
        mount.readonly = true;
        return Ok(mount);
    }
    let propagation = match requested.propagation() {
        v1::MountPropagation::PropagationPrivate => Propagation::Private,
        v1::MountPropagation::PropagationHostToContainer => Propagation::HostToContainer,
        v1::MountPropagation::PropagationBidirectional => Propagation::Bidirectional,
    };
    mount.source = MountSource::Bind { path: PathBuf::from(&requested.host_path), propagation };
    Ok(mount)
}

/// Reports whether the volume's ids are mapped as the pod's users are. Any other mapping is an error.
fn is_mapped(requested: &v1::Mount, users: Option<Mapping>) -> Result<bool, Error> {
    let uids = &requested.uid_mappings;
    let gids = &requested.gid_mappings;
    if uids.is_empty() && gids.is_empty() {
        return Ok(false);
    }
    let is = |list: &[v1::IdMapping], host: u32, length: u32| matches!(list, [one] if one.container_id == 0 && one.host_id == host && one.length == length);
    match users {
        Some(users) if is(uids, users.uid, users.length) && is(gids, users.gid, users.length) => Ok(true),
        _ => Err(Error::Invalid("a volume's ids are mapped in another way than the pod's users".into())),
    }
}

/// Returns an absolute path without repeated slashes and without `.` and `..`.
fn clean(path: &str) -> String {
    format!("/{}", crate::rooted::relative(Path::new(path)).display())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requested(path: &str) -> v1::Mount {
        v1::Mount { container_path: path.into(), host_path: "/host".into(), ..v1::Mount::default() }
    }

    fn decided(mounts: &[v1::Mount]) -> Result<Vec<Mount>, Error> {
        let nothing = |_: &str| Err(Error::Invalid("no images here".into()));
        let context = Context {
            privileged: false,
            readonly_rootfs: false,
            sandbox_files: Path::new("/sandbox"),
            shared_memory: Path::new("/shm"),
            image_layers: &nothing,
            users: None,
            nodev: false,
        };
        decide(mounts, &context)
    }

    fn destinations(mounts: &[v1::Mount]) -> Vec<String> {
        decided(mounts).expect("mounts").into_iter().map(|mount| mount.destination).collect()
    }

    #[test]
    fn a_requested_mount_replaces_the_default_at_its_path() {
        let all = destinations(&[requested("/etc/hosts/"), requested("/dev/shm")]);
        assert_eq!(all.iter().filter(|path| *path == "/etc/hosts").count(), 1);
        assert_eq!(all.iter().filter(|path| *path == "/dev/shm").count(), 1);
    }

    #[test]
    fn a_recursive_read_only_mount_is_private() {
        let mut mount = v1::Mount { recursive_read_only: true, ..requested("/a") };
        assert!(decided(std::slice::from_ref(&mount)).is_err(), "writable");
        mount.readonly = true;
        assert!(decided(std::slice::from_ref(&mount)).is_ok());
        for propagation in
            [v1::MountPropagation::PropagationHostToContainer, v1::MountPropagation::PropagationBidirectional]
        {
            mount.propagation = propagation.into();
            let error = decided(std::slice::from_ref(&mount)).expect_err("propagation").to_string();
            assert!(error.contains(propagation.as_str_name()), "{error}");
        }
    }

    #[test]
    fn outer_volumes_come_before_inner_ones() {
        let all = destinations(&[requested("/a/b/c"), requested("/a"), requested("/a/b")]);
        assert_eq!(all[all.len() - 3..], ["/a", "/a/b", "/a/b/c"]);
    }
}
