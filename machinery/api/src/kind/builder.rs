//! The builder of a kind's declaration, one step per method, in the order of a declaration.
//!
//! A step only sets data of the kind.

use std::sync::Arc;

use super::{Behaviour, Column, Kind, NameRule, PART_VERBS, PROXY_VERBS, Role, Ruled, Storage, Subresource};

impl Kind {
    #[must_use]
    pub fn short(mut self, names: &[&str]) -> Kind {
        self.short_names = names.iter().map(ToString::to_string).collect();
        self
    }

    #[must_use]
    pub fn category(mut self, category: &str) -> Kind {
        self.categories.push(category.to_string());
        self
    }

    #[must_use]
    pub fn singular(mut self, singular: &str) -> Kind {
        self.singular = singular.to_string();
        self
    }

    #[must_use]
    pub fn cluster(mut self) -> Kind {
        self.namespaced = false;
        self
    }

    /// Adds the status subresource, and the rule that the two are written separately.
    #[must_use]
    pub fn status(self) -> Kind {
        let kind = self.kind.clone();
        let mut this = self.sub("status", Role::Status, PART_VERBS, ("", "", &kind));
        this.rules.has_status = true;
        this
    }

    #[must_use]
    pub fn scale(self) -> Kind {
        self.sub("scale", Role::Scale, PART_VERBS, ("autoscaling", "v1", "Scale"))
    }

    #[must_use]
    pub fn proxy(self, options: &str) -> Kind {
        self.sub("proxy", Role::Proxy, PROXY_VERBS, ("", "", options))
    }

    /// Adds a subresource; they are sorted by name, as in discovery.
    #[must_use]
    pub fn sub(
        mut self,
        name: &'static str,
        role: Role,
        verbs: &[&'static str],
        body: (&'static str, &'static str, &str),
    ) -> Kind {
        let (group, version, kind) = body;
        let sub = Subresource { name, role, verbs: verbs.to_vec(), group, version, kind: kind.to_string() };
        let at = self.subresources.partition_point(|s| s.name < name);
        self.subresources.insert(at, sub);
        self
    }

    #[must_use]
    pub fn verbs(mut self, verbs: &[&'static str]) -> Kind {
        self.verbs = verbs.to_vec();
        self
    }

    /// Makes it a create-only resource that is answered and never stored.
    #[must_use]
    pub fn review(mut self) -> Kind {
        self.verbs = vec!["create"];
        self.storage = Storage::Virtual;
        self
    }

    /// Sets the storage prefix, if it is not `/registry/<plural>`.
    #[must_use]
    pub fn stored_at(mut self, prefix: &str) -> Kind {
        self.storage = Storage::Stored { prefix: prefix.to_string(), hub: None };
        self
    }

    /// Stores objects under `prefix` in another version's form.
    #[must_use]
    pub fn stored_as(mut self, prefix: &str, group: &str, version: &str) -> Kind {
        self.storage =
            Storage::Stored { prefix: prefix.to_string(), hub: Some((group.to_string(), version.to_string())) };
        self
    }

    /// Sets the columns of `kubectl get`: names separated by commas, those after the semicolon only with `-o wide`; a
    /// type other than string follows its name after a colon, a format after a slash, and the source of its cells after
    /// an equals sign.
    #[must_use]
    pub fn table(mut self, columns: &str) -> Kind {
        let (always, wide) = columns.split_once("; ").unwrap_or((columns, ""));
        let column = |text: &str, priority| {
            let (text, source) = text.split_once('=').unwrap_or((text, usual_source(text)));
            let (name, kind) = text.split_once(':').unwrap_or((text, "string"));
            let (kind, format) = kind.split_once('/').unwrap_or((kind, if name == "Name" { "name" } else { "" }));
            Column { priority, source: source.to_owned(), ..Column::new(name, kind).format(format) }
        };
        self.columns = always.split(", ").map(|c| column(c, 0)).collect();
        self.columns.extend(wide.split(", ").filter(|c| !c.is_empty()).map(|c| column(c, 1)));
        self
    }

    /// Reports whether rows show only name and creation time, as upstream's fallback printer does.
    pub fn is_plainly_shown(&self) -> bool {
        self.columns.get(1).is_some_and(|column| column.name == "Created At")
    }

    #[must_use]
    pub fn columns(mut self, columns: Vec<Column>) -> Kind {
        self.columns = columns;
        self
    }

    #[must_use]
    pub fn selectable(mut self, fields: &[&str]) -> Kind {
        self.selectable_fields = fields.iter().map(ToString::to_string).collect();
        self
    }

    #[must_use]
    pub fn status_takes_identity(self) -> Kind {
        self.status_takes(&["uid", "generateName", "deletionGracePeriodSeconds"])
    }

    #[must_use]
    pub fn status_takes(mut self, fields: &'static [&'static str]) -> Kind {
        self.rules.status_takes = fields;
        self.status_keeps_metadata()
    }

    #[must_use]
    pub fn is_owned_as_sent(mut self) -> Kind {
        self.rules.is_owned_as_sent = true;
        self.status_needs_spec()
    }

    #[must_use]
    pub fn warn_on_delete(mut self, warning: &'static str) -> Kind {
        self.rules.delete_warning = Some(warning);
        self
    }

    #[must_use]
    pub fn name_rule(mut self, rule: NameRule) -> Kind {
        self.rules.name_rule = rule;
        self
    }

    /// Sorts tables of this kind by the number in this column.
    #[must_use]
    pub fn rows_by(mut self, column: usize) -> Kind {
        self.rules.rows_by = Some(column);
        self
    }

    #[must_use]
    pub fn deprecated(mut self, warning: &'static str) -> Kind {
        self.deprecation = Some(warning.into());
        self
    }

    /// Validates objects by the rules of their type alone.
    #[must_use]
    pub(crate) fn ruled(self) -> Kind {
        let section = self.schema.trim_start_matches("io.k8s.api").to_owned();
        self.behaviour(Ruled(section))
    }

    #[must_use]
    pub fn behaviour(mut self, behaviour: impl Behaviour + 'static) -> Kind {
        self.behaviour = Arc::new(behaviour);
        self
    }
}

/// Returns the source of the columns that most kinds have.
fn usual_source(column: &str) -> &'static str {
    match column {
        "Name" => "/metadata/name",
        "Age" => "age()",
        "Created At:date" => "/metadata/creationTimestamp",
        _ => "",
    }
}

/// Adds a step for each rule that is a flag: `step: rule = value;`.
macro_rules! flags {
    ($($(#[$doc:meta])* $step:ident: $rule:ident = $value:literal;)*) => {
        impl Kind {
            $($(#[$doc])*
            #[must_use]
            pub fn $step(mut self) -> Kind {
                self.rules.$rule = $value;
                self
            })*
        }
    };
}

flags! {
    /// Makes `metadata.generation` count the changes of the spec.
    generation: generation = true;
    /// Makes an added or removed empty list or map count as a change.
    counts_empty: counts_empty = true;
    /// Makes the generation count dropped fields of disabled features.
    counts_gated: counts_gated = true;
    status_keeps_metadata: status_keeps_metadata = true;
    /// Declares that the server completes the spec, which never changes, so that no manager owns its fields.
    spec_is_reset: is_spec_reset = true;
    labels_from_template: labels_from_template = true;
    status_apply_creates: status_apply_creates = true;
    status_needs_spec: status_needs_spec = true;
    /// Makes a create keep its status.
    status_on_create: status_on_create = true;
    create_on_update: allow_create_on_update = true;
    /// Requires a resourceVersion in updates.
    conditional_update: allow_unconditional_update = false;
    graceful_delete: graceful_delete = true;
    returns_deleted: returns_deleted = true;
    orphan_by_default: orphan_by_default = true;
    without_dependents: is_without_dependents = true;
    marked_by_time: is_marked_by_time = true;
    status_keeps_owners: status_keeps_owners = true;
    status_keeps_labels: status_keeps_labels = true;
    /// Declares that its status subresource cannot be read as a table.
    status_without_rows: status_has_no_rows = true;
}
