//! Warnings about the files of a pod's volumes: overlapping paths, and sources without files.

use corten_meta::quote::quote;

use crate::check::At;

/// A file of a volume, and its source if the volume has several.
struct File {
    path: String,
    source: String,
}

impl File {
    fn shown(&self) -> String {
        if self.source.is_empty() { quote(&self.path) } else { format!("{} ({})", quote(&self.path), self.source) }
    }

    /// Reports whether two files are the same, or one is in a directory that is the other.
    fn overlaps(&self, other: &File) -> bool {
        let within = |inner: &str, outer: &str| format!("{inner}/").starts_with(&format!("{outer}/"));
        let named = !self.path.is_empty() && !other.path.is_empty();
        named && (within(&self.path, &other.path) || within(&other.path, &self.path))
    }
}

pub(super) fn overlapping_files(volumes: &At<'_>, out: &mut Vec<String>) {
    for volume in volumes.items() {
        let name = volume.get("name").text();
        for (field, called) in [("configMap", "name"), ("secret", "secretName"), ("downwardAPI", "")] {
            let source = volume.get(field);
            let described = described(field, source.get(called).text());
            overlaps(name, &described, files(&source, ""), out);
        }
        let mut all = Vec::new();
        for source in volume.get("projected").get("sources").items() {
            if source.is_empty() {
                out.push(format!("volume {} (Projected) has no sources provided", quote(name)));
            }
            all.extend(projected_files(&source));
        }
        overlaps(name, "Projected", all, out);
    }
}

fn described(field: &str, name: &str) -> String {
    match field {
        "configMap" => format!("ConfigMap {}", quote(name)),
        "secret" => format!("Secret {}", quote(name)),
        _ => "DownwardAPI".to_string(),
    }
}

fn file(at: &At<'_>, source: &str) -> File {
    File { path: at.text().trim_end_matches('/').to_string(), source: source.to_string() }
}

fn files(source: &At<'_>, from: &str) -> Vec<File> {
    source.get("items").items().map(|item| file(&item.get("path"), from)).collect()
}

fn projected_files(source: &At<'_>) -> Vec<File> {
    for field in ["configMap", "secret", "downwardAPI"] {
        let of = source.get(field);
        if of.is_set() && !of.get("items").is_empty() {
            return files(&of, &described(field, of.get("name").text()));
        }
    }
    let token = source.get("serviceAccountToken");
    if token.is_set() { vec![file(&token.get("path"), "ServiceAccountToken")] } else { Vec::new() }
}

fn overlaps(volume: &str, described: &str, files: Vec<File>, out: &mut Vec<String>) {
    for (at, file) in files.iter().enumerate() {
        for other in files[..at].iter().filter(|other| file.overlaps(other)) {
            let one = file.shown();
            let two = other.shown();
            out.push(format!("volume {} ({described}): overlapping paths: {one} with {two}", quote(volume)));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn overlapping_files_are_warned_of() {
        let volumes = json!([
            {"name": "a", "configMap": {"name": "c", "items": [{"path": "p"}, {"path": "q"}, {"path": "p/x"}]}},
            {"name": "b", "projected": {"sources": [
                {}, {"serviceAccountToken": {"path": "t"}}, {"secret": {"name": "s", "items": [{"path": "t/"}]}},
            ]}},
        ]);
        let mut out = Vec::new();
        overlapping_files(&At::object(&volumes), &mut out);
        assert_eq!(
            out,
            [
                "volume \"a\" (ConfigMap \"c\"): overlapping paths: \"p/x\" with \"p\"",
                "volume \"b\" (Projected) has no sources provided",
                "volume \"b\" (Projected): overlapping paths: \"t\" (Secret \"s\") with \"t\" (ServiceAccountToken)",
            ]
        );
    }
}
