#!/bin/busybox sh
# The first program of the virtual machine: makes the mounts that a system has, runs the tests, prints their code and ends.
set -e
B=/bin/busybox
if [ -z "$BOOTED" ]; then
    # Containers pivot their root, which the kernel refuses on its first file system: go on in a mount above it.
    $B mount --bind / /new
    cd /new
    $B mount --move . /
    BOOTED=1 exec $B chroot . /init
fi
$B mkdir -p /applets /dev/pts /dev/shm
$B mount -t proc proc /proc
$B mount -t sysfs sysfs /sys
$B mount -t devtmpfs dev /dev
$B mkdir -p /dev/pts /dev/shm
$B mount -t devpts devpts /dev/pts
$B mount -t tmpfs tmpfs /dev/shm
$B mount -t tmpfs -o size=3g tmpfs /tmp
$B mount -t tmpfs tmpfs /run
# Version 2 alone, as on every current distribution.
$B mount -t cgroup2 cgroup2 /sys/fs/cgroup
$B mount -t bpf bpf /sys/fs/bpf
$B hostname vm
$B --install -s /applets
export PATH=/usr/bin:/usr/sbin:/applets HOME=/root TERM=dumb NOTHING_SKIPPED=1
set +e
/tests </dev/null 2>&1
echo "the tests ended with $?"
$B poweroff -f
