//! The families of `/metrics/cadvisor`, under the names and labels of upstream's kubelet, in the order of the output.

use corten_meta::metrics::families;

families! {
    CADVISOR_VERSION_INFO = Gauge "cadvisor_version_info"
        ["cadvisorRevision", "cadvisorVersion", "dockerVersion", "kernelVersion", "osVersion"],
        "A metric with a constant '1' value labeled by kernel version, OS version, docker version, cadvisor version & \
         cadvisor revision.";
    MACHINE_CPU_CORES = Gauge "machine_cpu_cores" ["boot_id", "machine_id", "system_uuid"],
        "Number of logical CPU cores.";
    MACHINE_CPU_PHYSICAL_CORES = Gauge "machine_cpu_physical_cores" ["boot_id", "machine_id", "system_uuid"],
        "Number of physical CPU cores.";
    MACHINE_CPU_SOCKETS = Gauge "machine_cpu_sockets" ["boot_id", "machine_id", "system_uuid"],
        "Number of CPU sockets.";
    MACHINE_MEMORY_BYTES = Gauge "machine_memory_bytes" ["boot_id", "machine_id", "system_uuid"],
        "Amount of memory installed on the machine.";
    MACHINE_SWAP_BYTES = Gauge "machine_swap_bytes" ["boot_id", "machine_id", "system_uuid"],
        "Amount of swap memory available on the machine.";
    CONTAINER_BLKIO_DEVICE_USAGE_TOTAL = Counter "container_blkio_device_usage_total"
        ["container", "device", "id", "image", "major", "minor", "name", "namespace", "operation", "pod"],
        "Blkio Device bytes usage";
    CONTAINER_CPU_CFS_PERIODS_TOTAL = Counter "container_cpu_cfs_periods_total"
        ["container", "id", "image", "name", "namespace", "pod"],
        "Number of elapsed enforcement period intervals.";
    CONTAINER_CPU_CFS_THROTTLED_PERIODS_TOTAL = Counter "container_cpu_cfs_throttled_periods_total"
        ["container", "id", "image", "name", "namespace", "pod"],
        "Number of throttled period intervals.";
    CONTAINER_CPU_CFS_THROTTLED_SECONDS_TOTAL = Counter "container_cpu_cfs_throttled_seconds_total"
        ["container", "id", "image", "name", "namespace", "pod"],
        "Total time duration the container has been throttled.";
    CONTAINER_CPU_SYSTEM_SECONDS_TOTAL = Counter "container_cpu_system_seconds_total"
        ["container", "id", "image", "name", "namespace", "pod"],
        "Cumulative system cpu time consumed in seconds.";
    CONTAINER_CPU_USAGE_SECONDS_TOTAL = Counter "container_cpu_usage_seconds_total"
        ["container", "cpu", "id", "image", "name", "namespace", "pod"],
        "Cumulative cpu time consumed in seconds.";
    CONTAINER_CPU_USER_SECONDS_TOTAL = Counter "container_cpu_user_seconds_total"
        ["container", "id", "image", "name", "namespace", "pod"],
        "Cumulative user cpu time consumed in seconds.";
    CONTAINER_FILE_DESCRIPTORS = Gauge "container_file_descriptors"
        ["container", "id", "image", "name", "namespace", "pod"],
        "Number of open file descriptors for the container.";
    CONTAINER_FS_INODES_FREE = Gauge "container_fs_inodes_free"
        ["container", "device", "id", "image", "name", "namespace", "pod"],
        "Number of available Inodes";
    CONTAINER_FS_INODES_TOTAL = Gauge "container_fs_inodes_total"
        ["container", "device", "id", "image", "name", "namespace", "pod"],
        "Number of Inodes";
    CONTAINER_FS_LIMIT_BYTES = Gauge "container_fs_limit_bytes"
        ["container", "device", "id", "image", "name", "namespace", "pod"],
        "Number of bytes that can be consumed by the container on this filesystem.";
    CONTAINER_FS_READS_BYTES_TOTAL = Counter "container_fs_reads_bytes_total"
        ["container", "device", "id", "image", "name", "namespace", "pod"],
        "Cumulative count of bytes read";
    CONTAINER_FS_READS_TOTAL = Counter "container_fs_reads_total"
        ["container", "device", "id", "image", "name", "namespace", "pod"],
        "Cumulative count of reads completed";
    CONTAINER_FS_USAGE_BYTES = Gauge "container_fs_usage_bytes"
        ["container", "device", "id", "image", "name", "namespace", "pod"],
        "Number of bytes that are consumed by the container on this filesystem.";
    CONTAINER_FS_WRITES_BYTES_TOTAL = Counter "container_fs_writes_bytes_total"
        ["container", "device", "id", "image", "name", "namespace", "pod"],
        "Cumulative count of bytes written";
    CONTAINER_FS_WRITES_TOTAL = Counter "container_fs_writes_total"
        ["container", "device", "id", "image", "name", "namespace", "pod"],
        "Cumulative count of writes completed";
    CONTAINER_LAST_SEEN = Gauge "container_last_seen" ["container", "id", "image", "name", "namespace", "pod"],
        "Last time a container was seen by the exporter";
    CONTAINER_MEMORY_CACHE = Gauge "container_memory_cache" ["container", "id", "image", "name", "namespace", "pod"],
        "Number of bytes of page cache memory.";
    CONTAINER_MEMORY_FAILCNT = Counter "container_memory_failcnt"
        ["container", "id", "image", "name", "namespace", "pod"],
        "Number of memory usage hits limits";
    CONTAINER_MEMORY_FAILURES_TOTAL = Counter "container_memory_failures_total"
        ["container", "failure_type", "id", "image", "name", "namespace", "pod", "scope"],
        "Cumulative count of memory allocation failures.";
    CONTAINER_MEMORY_KERNEL_USAGE = Gauge "container_memory_kernel_usage"
        ["container", "id", "image", "name", "namespace", "pod"],
        "Size of kernel memory allocated in bytes.";
    CONTAINER_MEMORY_MAPPED_FILE = Gauge "container_memory_mapped_file"
        ["container", "id", "image", "name", "namespace", "pod"],
        "Size of memory mapped files in bytes.";
    CONTAINER_MEMORY_MAX_USAGE_BYTES = Gauge "container_memory_max_usage_bytes"
        ["container", "id", "image", "name", "namespace", "pod"],
        "Maximum memory usage recorded in bytes";
    CONTAINER_MEMORY_RSS = Gauge "container_memory_rss" ["container", "id", "image", "name", "namespace", "pod"],
        "Size of RSS in bytes.";
    CONTAINER_MEMORY_SWAP = Gauge "container_memory_swap" ["container", "id", "image", "name", "namespace", "pod"],
        "Container swap usage in bytes.";
    CONTAINER_MEMORY_TOTAL_ACTIVE_FILE_BYTES = Gauge "container_memory_total_active_file_bytes"
        ["container", "id", "image", "name", "namespace", "pod"],
        "Current total active file in bytes.";
    CONTAINER_MEMORY_TOTAL_INACTIVE_FILE_BYTES = Gauge "container_memory_total_inactive_file_bytes"
        ["container", "id", "image", "name", "namespace", "pod"],
        "Current total inactive file in bytes.";
    CONTAINER_MEMORY_USAGE_BYTES = Gauge "container_memory_usage_bytes"
        ["container", "id", "image", "name", "namespace", "pod"],
        "Current memory usage in bytes, including all memory regardless of when it was accessed";
    CONTAINER_MEMORY_WORKING_SET_BYTES = Gauge "container_memory_working_set_bytes"
        ["container", "id", "image", "name", "namespace", "pod"],
        "Current working set in bytes.";
    CONTAINER_NETWORK_RECEIVE_BYTES_TOTAL = Counter "container_network_receive_bytes_total"
        ["container", "id", "image", "interface", "name", "namespace", "pod"],
        "Cumulative count of bytes received";
    CONTAINER_NETWORK_RECEIVE_ERRORS_TOTAL = Counter "container_network_receive_errors_total"
        ["container", "id", "image", "interface", "name", "namespace", "pod"],
        "Cumulative count of errors encountered while receiving";
    CONTAINER_NETWORK_RECEIVE_PACKETS_DROPPED_TOTAL = Counter "container_network_receive_packets_dropped_total"
        ["container", "id", "image", "interface", "name", "namespace", "pod"],
        "Cumulative count of packets dropped while receiving";
    CONTAINER_NETWORK_RECEIVE_PACKETS_TOTAL = Counter "container_network_receive_packets_total"
        ["container", "id", "image", "interface", "name", "namespace", "pod"],
        "Cumulative count of packets received";
    CONTAINER_NETWORK_TRANSMIT_BYTES_TOTAL = Counter "container_network_transmit_bytes_total"
        ["container", "id", "image", "interface", "name", "namespace", "pod"],
        "Cumulative count of bytes transmitted";
    CONTAINER_NETWORK_TRANSMIT_ERRORS_TOTAL = Counter "container_network_transmit_errors_total"
        ["container", "id", "image", "interface", "name", "namespace", "pod"],
        "Cumulative count of errors encountered while transmitting";
    CONTAINER_NETWORK_TRANSMIT_PACKETS_DROPPED_TOTAL = Counter "container_network_transmit_packets_dropped_total"
        ["container", "id", "image", "interface", "name", "namespace", "pod"],
        "Cumulative count of packets dropped while transmitting";
    CONTAINER_NETWORK_TRANSMIT_PACKETS_TOTAL = Counter "container_network_transmit_packets_total"
        ["container", "id", "image", "interface", "name", "namespace", "pod"],
        "Cumulative count of packets transmitted";
    CONTAINER_OOM_EVENTS_TOTAL = Counter "container_oom_events_total"
        ["container", "id", "image", "name", "namespace", "pod"],
        "Count of out of memory events observed for the container";
    CONTAINER_PRESSURE_CPU_STALLED_SECONDS_TOTAL = Counter "container_pressure_cpu_stalled_seconds_total"
        ["container", "id", "image", "name", "namespace", "pod"],
        "Total time duration no tasks in the container could make progress due to CPU congestion.";
    CONTAINER_PRESSURE_CPU_WAITING_SECONDS_TOTAL = Counter "container_pressure_cpu_waiting_seconds_total"
        ["container", "id", "image", "name", "namespace", "pod"],
        "Total time duration tasks in the container have waited due to CPU congestion.";
    CONTAINER_PRESSURE_IO_STALLED_SECONDS_TOTAL = Counter "container_pressure_io_stalled_seconds_total"
        ["container", "id", "image", "name", "namespace", "pod"],
        "Total time duration no tasks in the container could make progress due to IO congestion.";
    CONTAINER_PRESSURE_IO_WAITING_SECONDS_TOTAL = Counter "container_pressure_io_waiting_seconds_total"
        ["container", "id", "image", "name", "namespace", "pod"],
        "Total time duration tasks in the container have waited due to IO congestion.";
    CONTAINER_PRESSURE_MEMORY_STALLED_SECONDS_TOTAL = Counter "container_pressure_memory_stalled_seconds_total"
        ["container", "id", "image", "name", "namespace", "pod"],
        "Total time duration no tasks in the container could make progress due to memory congestion.";
    CONTAINER_PRESSURE_MEMORY_WAITING_SECONDS_TOTAL = Counter "container_pressure_memory_waiting_seconds_total"
        ["container", "id", "image", "name", "namespace", "pod"],
        "Total time duration tasks in the container have waited due to memory congestion.";
    CONTAINER_PROCESSES = Gauge "container_processes" ["container", "id", "image", "name", "namespace", "pod"],
        "Number of processes running inside the container.";
    CONTAINER_SOCKETS = Gauge "container_sockets" ["container", "id", "image", "name", "namespace", "pod"],
        "Number of open sockets for the container.";
    CONTAINER_SPEC_CPU_PERIOD = Gauge "container_spec_cpu_period"
        ["container", "id", "image", "name", "namespace", "pod"],
        "CPU period of the container.";
    CONTAINER_SPEC_CPU_QUOTA = Gauge "container_spec_cpu_quota"
        ["container", "id", "image", "name", "namespace", "pod"],
        "CPU quota of the container.";
    CONTAINER_SPEC_CPU_SHARES = Gauge "container_spec_cpu_shares"
        ["container", "id", "image", "name", "namespace", "pod"],
        "CPU share of the container.";
    CONTAINER_SPEC_MEMORY_LIMIT_BYTES = Gauge "container_spec_memory_limit_bytes"
        ["container", "id", "image", "name", "namespace", "pod"],
        "Memory limit for the container.";
    CONTAINER_SPEC_MEMORY_RESERVATION_LIMIT_BYTES = Gauge "container_spec_memory_reservation_limit_bytes"
        ["container", "id", "image", "name", "namespace", "pod"],
        "Memory reservation limit for the container.";
    CONTAINER_SPEC_MEMORY_SWAP_LIMIT_BYTES = Gauge "container_spec_memory_swap_limit_bytes"
        ["container", "id", "image", "name", "namespace", "pod"],
        "Memory swap limit for the container.";
    CONTAINER_START_TIME_SECONDS = Gauge "container_start_time_seconds"
        ["container", "id", "image", "name", "namespace", "pod"],
        "Start time of the container since unix epoch in seconds.";
    CONTAINER_THREADS = Gauge "container_threads" ["container", "id", "image", "name", "namespace", "pod"],
        "Number of threads running inside the container";
    CONTAINER_THREADS_MAX = Gauge "container_threads_max" ["container", "id", "image", "name", "namespace", "pod"],
        "Maximum number of threads allowed inside the container, infinity if value is zero";
    CONTAINER_ULIMITS_SOFT = Gauge "container_ulimits_soft"
        ["container", "id", "image", "name", "namespace", "pod", "ulimit"],
        "Soft ulimit values for the container root process. Unlimited if -1, except priority and nice";
    CONTAINER_SCRAPE_ERROR = Gauge "container_scrape_error" [],
        "1 if there was an error while getting container metrics, 0 otherwise";
}
