//! The options of the static policy of processors.

/// Upstream's options of the static policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// A container has cores for itself, and never a part of one.
    pub full_pcpus_only: bool,
    /// Whether reserved processors are not shared either.
    pub strict_reservation: bool,
    /// A container's processors share a cache where that is possible.
    pub by_cache: bool,
    /// Whether processors that one NUMA node has too few of come from several, the same number of each.
    pub distribute: bool,
}

/// Where an option stands.
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
