/* Which devices there are, how they are found, and what never changes about them. */
#include "sim.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

struct pci_info {
    char legacy_bus[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_text[32];
};

struct process_info {
    unsigned pid;
    unsigned long long memory;
    unsigned instance, compute_instance;
};

/* Whether `room` is enough for the text; like the driver, nothing is cut. */
static int copy_text(char *into, unsigned room, const char *text)
{
    size_t size = strlen(text) + 1;
    RETURN_IF(!into, INVALID_ARGUMENT);
    RETURN_IF(room < size, INSUFFICIENT_SIZE);
    memcpy(into, text, size);
    return OK;
}

static bool parse_bus(const char *text, unsigned parts[3])
{
    unsigned function = 0;
    return sscanf(text, "%x:%x:%x.%x", &parts[0], &parts[1], &parts[2], &function) >= 3 && function == 0;
}

static int give(struct device *device, enum function function, struct device **into)
{
    int code = injected(function, NO_PART, device);
    if (code == OK)
        *into = device;
    return code;
}

SYSTEM_API(nvmlSystemGetDriverVersion, (char *into, unsigned room), (into, room))
{
    return copy_text(into, room, sim.driver);
}

SYSTEM_API(nvmlSystemGetNVMLVersion, (char *into, unsigned room), (into, room))
{
    char text[TEXT_SIZE + 8];
    snprintf(text, sizeof text, "%u.%s", sim.cuda / 1000, sim.driver);
    return copy_text(into, room, text);
}

SYSTEM_API(nvmlSystemGetCudaDriverVersion, (int *version), (version))
{
    *version = (int)sim.cuda;
    return OK;
}

SYSTEM_API(nvmlSystemGetCudaDriverVersion_v2, (int *version), (version))
{
    *version = (int)sim.cuda;
    return OK;
}

SYSTEM_API(nvmlDeviceGetCount_v2, (unsigned *count), (count))
{
    *count = 0;
    for (unsigned i = 0; i < MAX_GPUS; i++)
        *count += gpu_at(i)->present;
    return OK;
}

SYSTEM_API(nvmlDeviceGetHandleByIndex_v2, (unsigned index, struct device **into), (index, into))
{
    for (unsigned i = 0; i < MAX_GPUS; i++)
        if (gpu_at(i)->present && gpu_at(i)->index == index)
            return give(gpu_at(i), F_nvmlDeviceGetHandleByIndex_v2, into);
    return INVALID_ARGUMENT;
}

SYSTEM_API(nvmlDeviceGetHandleByUUID, (const char *uuid, struct device **into), (uuid, into))
{
    RETURN_IF(!uuid, INVALID_ARGUMENT);
    for (unsigned i = 0; i < MAX_GPUS * (1 + MAX_MIGS); i++)
        if (sim.devices[i].present && !strcmp(sim.devices[i].uuid, uuid))
            return give(&sim.devices[i], F_nvmlDeviceGetHandleByUUID, into);
    return NOT_FOUND;
}

SYSTEM_API(nvmlDeviceGetHandleByPciBusId_v2, (const char *bus, struct device **into), (bus, into))
{
    unsigned wanted[3], has[3];
    RETURN_IF(!bus || !parse_bus(bus, wanted), INVALID_ARGUMENT);
    for (unsigned i = 0; i < MAX_GPUS; i++)
        if (gpu_at(i)->present && parse_bus(gpu_at(i)->bus, has) && !memcmp(wanted, has, sizeof has))
            return give(gpu_at(i), F_nvmlDeviceGetHandleByPciBusId_v2, into);
    return NOT_FOUND;
}

DEVICE_API(nvmlDeviceGetName, (struct device *device, char *into, unsigned room), (device, into, room))
{
    return copy_text(into, room, device->name);
}

DEVICE_API(nvmlDeviceGetUUID, (struct device *device, char *into, unsigned room), (device, into, room))
{
    return copy_text(into, room, device->uuid);
}

DEVICE_API(nvmlDeviceGetPciInfo_v3, (struct device *device, struct pci_info *into), (device, into))
{
    unsigned parts[3];
    RETURN_IF(device->parent || !parse_bus(device->bus, parts), INVALID_ARGUMENT);
    *into = (struct pci_info){.domain = parts[0], .bus = parts[1], .device = parts[2]};
    snprintf(into->legacy_bus, sizeof into->legacy_bus, "%04X:%02X:%02X.0", parts[0] & 0xffff, parts[1] & 0xff,
             parts[2] & 0xff);
    snprintf(into->bus_text, sizeof into->bus_text, "%08X:%02X:%02X.0", parts[0], parts[1], parts[2]);
    return OK;
}

DEVICE_API(nvmlDeviceGetCudaComputeCapability, (struct device *device, int *major, int *minor), (device, major, minor))
{
    const struct device *gpu = device->parent ? device->parent : device;
    *major = (int)gpu->major;
    *minor = (int)gpu->minor;
    return OK;
}

/* A number of a whole GPU, which an instance of it does not have. */
#define NUMBER_API(name, member) \
    DEVICE_API(name, (struct device *device, unsigned *into), (device, into)) \
    { \
        RETURN_IF(device->parent, INVALID_ARGUMENT); \
        *into = device->member; \
        return OK; \
    }

NUMBER_API(nvmlDeviceGetIndex, index)
NUMBER_API(nvmlDeviceGetMinorNumber, index)
NUMBER_API(nvmlDeviceGetArchitecture, arch)
NUMBER_API(nvmlDeviceGetMemoryBusWidth, bus_width)
NUMBER_API(nvmlDeviceGetMaxMigDeviceCount, mig_max)

DEVICE_API(nvmlDeviceGetEnforcedPowerLimit, (struct device *device, unsigned *milliwatts), (device, milliwatts))
{
    RETURN_IF(device->parent, INVALID_ARGUMENT);
    *milliwatts = 1000 * device->power_limit;
    return OK;
}

DEVICE_API(nvmlDeviceGetMaxClockInfo, (struct device *device, int clock, unsigned *mhz), (device, clock, mhz))
{
    RETURN_IF(device->parent || clock < 0 || clock > 3, INVALID_ARGUMENT);
    *mhz = clock == 2 ? device->max_mem : device->max_sm;
    return injected(F_nvmlDeviceGetMaxClockInfo, clock, device);
}

DEVICE_API(nvmlDeviceGetTemperatureThreshold, (struct device *device, int which, unsigned *celsius),
           (device, which, celsius))
{
    RETURN_IF(device->parent, INVALID_ARGUMENT);
    unsigned limit = which == 0 ? device->shutdown : which == 1 ? device->slowdown : 0;
    RETURN_IF(!limit, NOT_SUPPORTED);
    *celsius = limit;
    return OK;
}

DEVICE_API(nvmlDeviceGetMigMode, (struct device *device, unsigned *current, unsigned *pending),
           (device, current, pending))
{
    RETURN_IF(device->parent, INVALID_ARGUMENT);
    RETURN_IF(!device->mig_max, NOT_SUPPORTED);
    *current = *pending = device->mig;
    return OK;
}

DEVICE_API(nvmlDeviceGetMigDeviceHandleByIndex, (struct device *device, unsigned slot, struct device **into),
           (device, slot, into))
{
    RETURN_IF(device->parent, INVALID_ARGUMENT);
    RETURN_IF(!device->mig, device->mig_max ? NOT_FOUND : NOT_SUPPORTED);
    RETURN_IF(slot >= device->mig_max || slot >= MAX_MIGS, INVALID_ARGUMENT);
    RETURN_IF(!device[1 + slot].present, NOT_FOUND);
    return give(&device[1 + slot], F_nvmlDeviceGetMigDeviceHandleByIndex, into);
}

DEVICE_API(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, (struct device *device, struct device **into), (device, into))
{
    RETURN_IF(!device->parent, INVALID_ARGUMENT);
    *into = device->parent;
    return OK;
}

DEVICE_API(nvmlDeviceIsMigDeviceHandle, (struct device *device, unsigned *is_mig), (device, is_mig))
{
    *is_mig = device->parent != NULL;
    return OK;
}

DEVICE_API(nvmlDeviceGetGpuInstanceId, (struct device *device, unsigned *id), (device, id))
{
    RETURN_IF(!device->parent, INVALID_ARGUMENT);
    *id = device->instance;
    return OK;
}

DEVICE_API(nvmlDeviceGetComputeInstanceId, (struct device *device, unsigned *id), (device, id))
{
    RETURN_IF(!device->parent, INVALID_ARGUMENT);
    *id = device->compute_instance;
    return OK;
}

DEVICE_API(nvmlDeviceGetComputeRunningProcesses_v3,
           (struct device *device, unsigned *count, struct process_info *into), (device, count, into))
{
    unsigned room = *count, has = (unsigned)device->process_count;
    *count = has;
    RETURN_IF(room < has || (has && !into), INSUFFICIENT_SIZE);
    for (unsigned i = 0; i < has; i++)
        into[i] = (struct process_info){
            .pid = device->processes[i].pid, .memory = device->processes[i].memory,
            .instance = device->parent ? device->instance : ~0u,
            .compute_instance = device->parent ? device->compute_instance : ~0u,
        };
    return OK;
}

DEVICE_API(nvmlDeviceGetGraphicsRunningProcesses_v3,
           (struct device *device, unsigned *count, struct process_info *into), (device, count, into))
{
    (void)device;
    (void)into;
    *count = 0;
    return OK;
}
