//! The rules in code that the validation table names. The table and the groups do not know each other: the package binds
//! them here by name.

use crate::core::{
    claim_validation, endpoints, persistentvolume_validation, pod_validation, probe_validation, projected_validation,
    replica_validation, resource_validation, scheduling_validation, security_validation, volume_source,
};
use crate::rules::Code::{self, At, Present, Site};
use crate::{
    admissionregistration, apiextensions, apiregistration, apps, authorization, autoscaling, batch, certificates,
    discovery, flowcontrol, networking, node, rbac, resource, scheduling, storage, validation,
};

const CODE: &[(&str, Code)] = &[
    ("absolute_path", At(volume_source::absolute_path)),
    ("access_modes", At(claim_validation::validate_access_modes)),
    ("allowed_topologies", Present(storage::validation::allowed_topologies)),
    ("any_label_requirement", At(authorization::validation::any_label_requirement)),
    ("api_service_name", Site(apiregistration::apiservice::api_service_name)),
    ("apparmor_file", At(security_validation::apparmor_file)),
    ("attach_message", Present(storage::validation::attach_message)),
    ("audit_key", Site(admissionregistration::policy_validation::audit_key)),
    ("azure_disk", At(volume_source::azure_disk)),
    ("cel_identifier", At(admissionregistration::policy_validation::cel_identifier)),
    ("certificate_request", At(certificates::validation::certificate_request)),
    ("chap_secret", At(volume_source::chap_secret)),
    ("claim_requests", Site(resource::validation::claim_requests)),
    ("claim_status", Site(resource::validation::claim_status)),
    ("claim_template", At(claim_validation::validate_claim_template)),
    ("container_resource_name", At(resource_validation::validate_container_resource_name)),
    ("counters", At(resource::slice_validation::counters)),
    ("cron_job_name", Site(batch::cronjob_validation::cron_job_name)),
    ("cron_schedule", Site(batch::cronjob_validation::cron_schedule)),
    ("cron_time_zone", Site(batch::cronjob_validation::cron_time_zone)),
    ("csi_driver_name", At(volume_source::csi_driver_name)),
    ("daemon_set_selector", Site(apps::validation::daemon_set_selector)),
    ("daemon_set_template", Site(apps::validation::daemon_set_template)),
    ("definition_label", At(apiextensions::validation::definition_label)),
    ("deny_or_warn", Present(admissionregistration::policy_validation::deny_or_warn)),
    ("deployment_selector", Site(apps::validation::deployment_selector)),
    ("distinct_kinds", At(apiextensions::validation::distinct_kinds)),
    ("distinct_tolerations", Present(node::runtimeclass::distinct_tolerations)),
    ("domain_prefixed_path", At(validation::domain_prefixed_path)),
    ("downward_api", At(projected_validation::downward_api)),
    ("elastic_completions", Site(batch::validation::elastic_completions)),
    ("extended_resource_name", Present(resource::validation::extended_resource_name)),
    ("failure_policy", Site(batch::validation::failure_policy)),
    ("fibre_channel", At(volume_source::fibre_channel)),
    ("flex_options", Present(volume_source::flex_options)),
    ("flocker", At(volume_source::flocker)),
    ("flow_namespaces", Present(flowcontrol::validation::flow_namespaces)),
    ("flow_urls", Present(flowcontrol::validation::flow_urls)),
    ("flow_verbs", Present(flowcontrol::validation::flow_verbs)),
    ("fully_qualified", At(resource::validation::fully_qualified)),
    ("generated_selector", Site(batch::validation::generated_selector)),
    ("group_version", At(autoscaling::validation::group_version)),
    ("hand_size", Site(flowcontrol::validation::hand_size)),
    ("header_names", Present(probe_validation::header_names)),
    ("indexed_job", At(batch::validation::indexed_job)),
    ("indexed_pod_name", Site(batch::validation::indexed_pod_name)),
    ("ingress_host", At(networking::validation::ingress_host)),
    ("ingress_path", Site(networking::validation::ingress_path)),
    ("ingress_rules", Site(networking::validation::ingress_rules)),
    ("inline_volume", At(storage::validation::inline_volume)),
    ("iscsi_target", At(volume_source::iscsi_target)),
    ("job_template", Site(batch::validation::job_template)),
    ("json_path", At(admissionregistration::policy_validation::json_path)),
    ("kind_name", At(admissionregistration::policy_validation::kind_name)),
    ("label_keys", At(scheduling_validation::label_keys)),
    ("least_replicas", Site(autoscaling::validation::least_replicas)),
    ("matched_resources", At(admissionregistration::webhook::matched_resources)),
    ("metric", At(autoscaling::validation::metric)),
    ("metrics_of_no_replicas", Site(autoscaling::validation::metrics_of_no_replicas)),
    ("most_replicas", Site(autoscaling::validation::most_replicas)),
    ("mutable_operations", Present(admissionregistration::policy_validation::mutable_operations)),
    ("named_if_many", Site(endpoints::named_if_many)),
    ("no_bundle", Present(apiregistration::apiservice::no_bundle)),
    ("no_metadata", Present(authorization::validation::no_metadata)),
    ("not_decremented", Site(replica_validation::not_decremented)),
    ("not_dotted", Present(projected_validation::not_dotted)),
    ("not_only_blank", Present(admissionregistration::policy_validation::not_only_blank)),
    ("not_zero", Present(apps::validation::not_zero)),
    ("one_compared_value", At(scheduling_validation::one_compared_value)),
    ("one_field_value", At(scheduling_validation::one_field_value)),
    ("one_line", Present(admissionregistration::policy_validation::one_line)),
    ("one_of_surge_and_unavailable", At(apps::validation::one_of_surge_and_unavailable)),
    ("one_patch", At(admissionregistration::policy_validation::one_patch)),
    ("only_namespace", Present(authorization::validation::only_namespace)),
    ("only_urls", Site(rbac::validation::only_urls)),
    ("overhead", Present(pod_validation::validate_overhead)),
    ("own_namespace", Site(authorization::validation::own_namespace)),
    ("param_version", At(admissionregistration::policy_validation::param_version)),
    ("path_below_either", At(apiextensions::validation::path_below_either)),
    ("path_below_spec", At(apiextensions::validation::path_below_spec)),
    ("path_below_status", At(apiextensions::validation::path_below_status)),
    ("persistent_iscsi_target", At(volume_source::persistent_iscsi_target)),
    ("pod_template", At(batch::validation::pod_template)),
    ("policy_ports", Site(networking::validation::policy_ports)),
    ("pool_name", At(resource::validation::pool_name)),
    ("printable", Present(apiextensions::validation::printable)),
    ("priority_value", Site(scheduling::priorityclass::priority_value)),
    ("progress_deadline", Site(apps::validation::progress_deadline)),
    ("projected", At(projected_validation::projected)),
    ("qualified_in_any_case", At(storage::validation::qualified_in_any_case)),
    ("quobyte", At(volume_source::quobyte)),
    ("raw_parameters", At(resource::validation::raw_parameters)),
    ("readable_selector", At(rbac::validation::readable_selector)),
    ("replica_set_template", Site(apps::validation::replica_set_template)),
    ("request_conditions", Present(certificates::validation::request_conditions)),
    ("review_versions", At(admissionregistration::webhook::review_versions)),
    ("scale_target_version", Site(autoscaling::validation::scale_target_version)),
    ("selected_template", At(batch::validation::selected_template)),
    ("service_port", At(apiregistration::apiservice::service_port)),
    ("short_expression", Present(admissionregistration::policy_validation::short_expression)),
    ("side_effects", Site(admissionregistration::webhook::side_effects)),
    ("simple_path", At(apiextensions::validation::simple_path)),
    ("size_limit", Present(volume_source::size_limit)),
    ("slice_address", Site(discovery::endpointslice::slice_address)),
    ("slice_devices", Site(resource::slice_validation::slice_devices)),
    ("slice_nodes", At(resource::slice_validation::slice_nodes)),
    ("some_selector", At(authorization::validation::some_selector)),
    ("some_surge_or_unavailable", At(apps::validation::some_surge_or_unavailable)),
    ("storage_metadata", Present(storage::validation::storage_metadata)),
    ("storage_parameters", Present(storage::validation::storage_parameters)),
    ("strict_subsets", Site(networking::validation::strict_subsets)),
    ("success_policy", Site(batch::validation::success_policy)),
    ("template_metadata", At(claim_validation::validate_template_metadata)),
    ("token_requests", Present(storage::validation::token_requests)),
    ("tolerated_value", At(scheduling_validation::tolerated_value)),
    ("topology_keys", Present(storage::validation::topology_keys)),
    ("unreserved_precedence", Present(flowcontrol::validation::unreserved_precedence)),
    ("volume_capacity", At(persistentvolume_validation::volume_capacity)),
    ("webhook_client", At(admissionregistration::webhook::validate_client)),
    ("webhook_name", At(admissionregistration::webhook::webhook_name)),
    ("windows_user", Present(security_validation::windows_user)),
];

pub(crate) fn rule_in_code(name: &str) -> Option<Code> {
    CODE.iter().find(|(known, _)| *known == name).map(|(_, code)| *code)
}

#[cfg(test)]
mod tests {
    use super::CODE;

    #[test]
    fn every_rule_is_used_by_the_table_and_sorted() {
        const TABLE: &str = include_str!("../schema/validation.tbl");
        assert!(CODE.is_sorted_by(|(a, _), (b, _)| a < b));
        let words: Vec<&str> = TABLE.split_whitespace().collect();
        for (name, _) in CODE {
            assert!(words.contains(&format!(":{name}").as_str()), "{name}");
        }
    }

    #[test]
    fn every_kind_that_names_rules_has_some() {
        for kind in crate::kinds() {
            let rules = kind.behaviour.rules();
            let has = |part: &str| crate::rules::TABLE.places.contains_key(format!("{rules}{part}").as_str());
            let parts = ["", "/create", "/update", "/status"];
            assert!(rules.is_empty() || parts.into_iter().any(has), "{}", kind.kind);
        }
    }
}
