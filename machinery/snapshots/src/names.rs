//! The finalizers, annotations, labels and parameters that the snapshot controller and the loops of drivers share. They
//! are upstream's: sidecars of upstream's work with our controller, and the reverse.

/// Keeps a content while its snapshot is bound to it, or exists on the storage system.
pub const CONTENT_FINALIZER: &str = "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection";
/// Keeps a snapshot until its content is deleted.
pub const BOUND_FINALIZER: &str = "snapshot.storage.kubernetes.io/volumesnapshot-bound-protection";
/// Keeps a snapshot while a claim is being made of it.
pub const SOURCE_FINALIZER: &str = "snapshot.storage.kubernetes.io/volumesnapshot-as-source-protection";
/// Keeps a snapshot while its group exists.
pub const IN_GROUP_FINALIZER: &str = "snapshot.storage.kubernetes.io/volumesnapshot-in-group-protection";
/// Keeps a claim while a snapshot of it is being taken.
pub const CLAIM_FINALIZER: &str = "snapshot.storage.kubernetes.io/pvc-as-source-protection";
/// Keeps the content of a group.
pub const GROUP_CONTENT_FINALIZER: &str =
    "groupsnapshot.storage.kubernetes.io/volumegroupsnapshotcontent-bound-protection";
/// Keeps a group snapshot until its content is deleted.
pub const GROUP_BOUND_FINALIZER: &str = "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-bound-protection";

/// The annotation of default VolumeSnapshotClasses.
pub const DEFAULT_CLASS: &str = "snapshot.storage.kubernetes.io/is-default-class";
/// The annotation of default VolumeGroupSnapshotClasses.
pub const DEFAULT_GROUP_CLASS: &str = "groupsnapshot.storage.kubernetes.io/is-default-class";

/// The annotation of a content whose snapshot is being deleted.
pub const BEING_DELETED: &str = "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted";
/// The annotation of a content while the driver is asked to take the snapshot: without a final answer there may be one.
pub const BEING_CREATED: &str = "snapshot.storage.kubernetes.io/volumesnapshot-being-created";
/// The annotation of a group's content whose group snapshot is being deleted.
pub const GROUP_BEING_DELETED: &str = "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-being-deleted";
/// The annotation of a group's content while the driver is asked to take the snapshots.
pub const GROUP_BEING_CREATED: &str = "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-being-created";
/// The annotation of a content that belongs to a group: the driver took its snapshot with the group's.
pub const GROUP_HANDLE: &str = "groupsnapshot.storage.k8s.io/volumeGroupSnapshotHandle";

/// The annotations with the Secret for the deletion of a snapshot.
pub const DELETION_SECRET_NAME: &str = "snapshot.storage.kubernetes.io/deletion-secret-name";
pub const DELETION_SECRET_NAMESPACE: &str = "snapshot.storage.kubernetes.io/deletion-secret-namespace";
/// The annotations with the Secret for the deletion of a group's snapshots.
pub const GROUP_DELETION_SECRET_NAME: &str = "groupsnapshot.storage.kubernetes.io/deletion-secret-name";
pub const GROUP_DELETION_SECRET_NAMESPACE: &str = "groupsnapshot.storage.kubernetes.io/deletion-secret-namespace";

/// The label of a content whose volume only one node reaches: the loops on that node handle it.
pub const MANAGED_BY: &str = "snapshot.storage.kubernetes.io/managed-by";

/// The prefix of parameters that are for Kubernetes and not for the driver.
pub const PARAMETER_PREFIX: &str = "csi.storage.k8s.io/";
