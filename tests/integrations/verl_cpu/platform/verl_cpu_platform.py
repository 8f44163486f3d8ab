"""A platform of verl's without an accelerator: gloo, and Ray told of one fictitious GPU."""

import os
from contextlib import contextmanager

import torch
import torch.cpu
import verl.utils.distributed as distributed
from verl.plugin.platform import PlatformBase, PlatformRegistry

# verl calls these on its device module without asking whether it has them
for name in ("max_memory_allocated", "max_memory_reserved", "memory_allocated", "memory_reserved"):
    if not hasattr(torch.cpu, name):
        setattr(torch.cpu, name, lambda *args, **more: 0)
for name in ("empty_cache", "ipc_collect", "reset_peak_memory_stats", "reset_accumulated_memory_stats"):
    if not hasattr(torch.cpu, name):
        setattr(torch.cpu, name, lambda *args, **more: None)


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    """What verl asks a platform for."""

    device_name = property(lambda self: "cpu")
    vendor_name = property(lambda self: "cpu")
    device_module = property(lambda self: torch.cpu)

    def is_available(self):
        return True

    def is_platform_available(self, use_smi_check=False):
        return os.environ.get("VERL_PLATFORM") == "cpu"

    def current_device(self):
        return "cpu"

    def device_count(self):
        return 1

    def set_device(self, device_index):
        return None

    def synchronize(self, device_index=None):
        return None

    def manual_seed(self, seed):
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def set_allocator_settings(self, settings):
        return None

    def empty_cache(self):
        return None

    def get_device_capability(self, device_index=0):
        return None, None

    def communication_backend_name(self):
        return "gloo"

    def visible_devices_envvar(self):
        return "CUDA_VISIBLE_DEVICES"

    def ray_resource_name(self):
        return "GPU"

    def ray_noset_envvars(self):
        return []

    def is_ipc_supported(self):
        return False  # weights go through POSIX shared memory

    @contextmanager
    def nvtx_range(self, msg):
        yield

    def profiler_start(self):
        return None

    def profiler_stop(self):
        return None

    def cudart(self):
        return None


# verl builds "cpu:gloo,cpu:gloo" of a device and its backend, which torch refuses
_initialize = distributed.initialize_global_process_group_ray


def initialize_global_process_group_ray(timeout_second=None, backend=None):
    return _initialize(timeout_second=timeout_second, backend=backend or "gloo")


distributed.initialize_global_process_group_ray = initialize_global_process_group_ray
