//! The list of a component's metric families. Each component has one, in its `metrics` module; renderers, the reference
//! in `docs/` and the tests read it.

/// The kind of a family.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Counter,
    Gauge,
    /// A histogram with the upper bounds of its buckets.
    Histogram(&'static [f64]),
}

impl Kind {
    /// Returns the kind's name in the text format.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram(_) => "histogram",
        }
    }
}

/// The declaration of a family. Upstream's families have upstream's HELP, which begins with the stability level.
#[derive(Debug)]
pub struct Family {
    pub name: &'static str,
    pub kind: Kind,
    pub labels: &'static [&'static str],
    pub help: &'static str,
}

impl Family {
    /// Returns the upper bounds of a histogram's buckets; a counter or gauge has none.
    pub const fn bounds(&self) -> &'static [f64] {
        match self.kind {
            Kind::Histogram(bounds) => bounds,
            Kind::Counter | Kind::Gauge => &[],
        }
    }
}

/// Declares families: `NAME = Kind "metric_name" ["label"], "HELP";`, and `FAMILIES`, the list of all of them.
#[macro_export]
macro_rules! families {
    ($($(#[$doc:meta])* $id:ident = $kind:ident $(($bounds:expr))? $name:literal
        [$($label:literal),* $(,)?], $help:literal;)*) => {
        $($(#[$doc])*
        pub static $id: $crate::metrics::Family = $crate::metrics::Family {
            name: $name,
            kind: $crate::metrics::Kind::$kind $(($bounds))?,
            labels: &[$($label),*],
            help: $help,
        };)*

        /// Every family of this list.
        pub static FAMILIES: &[&$crate::metrics::Family] = &[$(&$id),*];
    };
}

/// Returns bounds that grow by a factor.
pub const fn exponential<const N: usize>(start: f64, factor: f64) -> [f64; N] {
    let mut bounds = [start; N];
    let mut at = 1;
    while at < N {
        bounds[at] = bounds[at - 1] * factor;
        at += 1;
    }
    bounds
}
