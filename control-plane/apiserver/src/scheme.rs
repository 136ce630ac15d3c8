//! The kinds of upstream's schemes, for the errors about a body of another kind than expected. Pure.

use corten_meta::quote::quote;

/// A set of kinds that upstream has registered together.
pub struct Scheme {
    /// The source line of the scheme, which errors have as its name.
    place: &'static str,
    /// The only group of the scheme; `None` is all the groups that share one.
    group: Option<&'static str>,
}

/// The kinds that every version of every group has in every scheme.
const UNVERSIONED: [&str; 5] = ["Status", "APIVersions", "APIGroup", "APIGroupList", "APIResourceList"];
/// The kinds that every registered version has.
const EVERYWHERE: [&str; 7] =
    ["WatchEvent", "ListOptions", "GetOptions", "DeleteOptions", "CreateOptions", "UpdateOptions", "PatchOptions"];
/// Kinds of the core group that no path serves.
const CORE: [&str; 7] = [
    "List",
    "PodLogOptions",
    "PodExecOptions",
    "PodAttachOptions",
    "PodPortForwardOptions",
    "PodProxyOptions",
    "NodeProxyOptions",
];
/// The other kinds of `meta.k8s.io/v1`.
const OF_META: [&str; 3] = ["Table", "PartialObjectMetadata", "PartialObjectMetadataList"];

const META_GROUP: &str = "meta.k8s.io";
const INTERNAL: &str = "__internal";
/// The kind of a watch's events.
const EVENT: &str = "WatchEvent";

/// The scheme of options, such as DeleteOptions.
pub const META: Scheme =
    Scheme { place: "pkg/apis/meta/internalversion/scheme/register.go:27", group: Some(META_GROUP) };

pub fn of(group: &str) -> Scheme {
    match group {
        "apiextensions.k8s.io" => {
            Scheme { place: "pkg/apiserver/apiserver.go:55", group: Some("apiextensions.k8s.io") }
        }
        "apiregistration.k8s.io" => {
            Scheme { place: "pkg/apiserver/scheme/scheme.go:28", group: Some("apiregistration.k8s.io") }
        }
        _ => Scheme { place: "pkg/api/legacyscheme/scheme.go:30", group: None },
    }
}

/// Returns the Go package of a group's internal types.
pub fn package(group: &str) -> &str {
    match group {
        // Events of both groups have one internal type.
        "" | "events.k8s.io" => "core",
        group => group.split('.').next().unwrap_or_default(),
    }
}

/// Returns the Go type of a kind, without its package.
pub fn type_name<'a>(api_version: &str, kind: &'a str) -> &'a str {
    if kind == EVENT && api_version.ends_with(INTERNAL) { "InternalEvent" } else { kind }
}

impl Scheme {
    /// Returns the Go package of a kind, if the scheme has it in this version.
    pub fn package_of(&self, api_version: &str, kind: &str) -> Option<String> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        if UNVERSIONED.contains(&kind) || (self.is_meta() && self.is_option(kind)) {
            return Some("v1".to_owned());
        }
        if self.is_meta() {
            let has = match version {
                "v1" => EVERYWHERE.contains(&kind) || OF_META.contains(&kind),
                "v1beta1" => OF_META.contains(&kind),
                _ => false,
            };
            return (has && group == META_GROUP).then(|| version.to_owned());
        }
        let types = || corten_api::schema().types().filter_map(|of| of.gvk.as_ref());
        let is_here = self.group.is_none_or(|own| own == group);
        if kind == EVENT {
            let is_known = match (self.group, version) {
                // This scheme has it in every version.
                (Some("apiextensions.k8s.io"), version) if version != INTERNAL => true,
                (Some(own), INTERNAL) => group.is_empty() || group == own,
                (None, INTERNAL) => types().any(|of| of.0 == group),
                _ => false,
            };
            if is_known {
                return Some("v1".to_owned());
            }
        }
        if version == INTERNAL {
            let is_core = self.group.is_none() && group.is_empty() && CORE.contains(&kind);
            let has = is_core || (is_here && types().any(|of| of.0 == group && of.2 == kind));
            return (has && !EVERYWHERE.contains(&kind)).then(|| package(group).to_owned());
        }
        let has_version = match self.group {
            Some(own) => api_version == "v1" || group == own,
            None => types().any(|of| of.0 == group && of.1 == version),
        };
        if has_version && EVERYWHERE.contains(&kind) {
            return Some("v1".to_owned());
        }
        let is_core = self.group.is_none() && api_version == "v1" && CORE.contains(&kind);
        let has = is_core || (is_here && types().any(|of| of.0 == group && of.1 == version && of.2 == kind));
        has.then(|| version.to_owned())
    }

    fn is_meta(&self) -> bool {
        self.group == Some(META_GROUP)
    }

    /// Returns whether the kind is one of the options of writes, which this scheme has in every version.
    fn is_option(&self, kind: &str) -> bool {
        matches!(kind, "CreateOptions" | "UpdateOptions" | "DeleteOptions")
    }

    /// Returns the error about a kind that the scheme does not have in this version.
    pub fn unknown(&self, api_version: &str, kind: &str) -> String {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let of = match version {
            INTERNAL => format!("the internal version of group {}", quote(group)),
            _ => format!("version {}", quote(api_version)),
        };
        format!("no kind {kind} is registered for {of} in scheme {}", quote(&self.place), kind = quote(kind))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_known_where_upstream_registers_them() {
        for (scheme, version, kind, package) in [
            (META, "foo/v1", "Status", Some("v1")),
            (META, "v1", "CreateOptions", Some("v1")),
            (META, "v1", "ListOptions", None),
            (META, "meta.k8s.io/v1", "ListOptions", Some("v1")),
            (META, "meta.k8s.io/v1beta1", "Table", Some("v1beta1")),
            (META, "v1", "Pod", None),
            (of(""), "foo/v1", "Status", Some("v1")),
            (of("apps"), "apps/v1", "PatchOptions", Some("v1")),
            (of("apps"), "foo/v1", "PatchOptions", None),
            (of("apps"), "v1", "List", Some("v1")),
            (of("apps"), "v1", "Pod", Some("v1")),
            (of("apps"), "apps/__internal", "Deployment", Some("apps")),
            (of("apps"), "__internal", "Pod", Some("core")),
            (of("apps"), "apps/__internal", "Pod", None),
            (of("apiregistration.k8s.io"), "v1", "Pod", None),
            (of("apiregistration.k8s.io"), "v1", "DeleteOptions", Some("v1")),
            (of("apiregistration.k8s.io"), "apps/v1", "DeleteOptions", None),
            (of("apiregistration.k8s.io"), "apiregistration.k8s.io/v1", "APIService", Some("v1")),
            (of("apiregistration.k8s.io"), "apps/v1", "WatchEvent", None),
            (of("apiregistration.k8s.io"), "__internal", "WatchEvent", Some("v1")),
            (of("apiextensions.k8s.io"), "foo/v2", "WatchEvent", Some("v1")),
            (of("apps"), "foo/v1", "WatchEvent", None),
            (of("apps"), "apps/__internal", "WatchEvent", Some("v1")),
        ] {
            assert_eq!(scheme.package_of(version, kind).as_deref(), package, "{version} {kind} in {}", scheme.place);
        }
        assert_eq!(type_name("apps/__internal", "WatchEvent"), "InternalEvent");
        let unknown = META.unknown("apps/__internal", "Foo");
        assert!(unknown.starts_with("no kind \"Foo\" is registered for the internal version of group \"apps\""));
    }
}
