//! The options of the static CPU manager policy.

/// Upstream's options of the static policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Whether a container gets full physical cores only.
    pub full_pcpus_only: bool,
    /// Whether containers without exclusive CPUs may not use the reserved CPUs either.
    pub strict_reservation: bool,
    /// Whether a container's CPUs share an uncore cache where that is possible.
    pub by_cache: bool,
    /// Whether CPUs that no single NUMA node has are distributed evenly across NUMA nodes.
    pub distribute: bool,
}

/// The accessor of an option.
type Switch = fn(&mut Options) -> &mut bool;

impl Options {
    /// The options by upstream's names.
    pub const ALL: [(&'static str, Switch); 4] = [
        ("full-pcpus-only", |options| &mut options.full_pcpus_only),
        ("strict-cpu-reservation", |options| &mut options.strict_reservation),
        ("prefer-align-cpus-by-uncorecache", |options| &mut options.by_cache),
        ("distribute-cpus-across-numa", |options| &mut options.distribute),
    ];
}
