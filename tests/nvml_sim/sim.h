/* What the parts of the simulated driver library share. */
#ifndef SIM_H
#define SIM_H

#include <stdbool.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

enum {
    OK = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    VERSION_MISMATCH = 25,
};

/* The values of a timeline. The two last follow from the reasons. */
enum key {
    UTIL, MEM, SM, OCC, TENSOR, DRAM, POWER, TEMP, USED, REASONS, SM_MHZ, MEM_MHZ, TX, RX,
    SW_THERMAL, HW_THERMAL, KEYS
};

/* Functions that can be counted, slowed down and made to fail. */
#define FUNCTIONS(X) \
    X(nvmlInit) X(nvmlShutdown) X(nvmlSystemGetDriverVersion) X(nvmlSystemGetNVMLVersion) \
    X(nvmlSystemGetCudaDriverVersion) X(nvmlSystemGetCudaDriverVersion_v2) X(nvmlDeviceGetCount_v2) \
    X(nvmlDeviceGetHandleByIndex_v2) X(nvmlDeviceGetHandleByUUID) X(nvmlDeviceGetHandleByPciBusId_v2) \
    X(nvmlDeviceGetName) X(nvmlDeviceGetUUID) X(nvmlDeviceGetIndex) X(nvmlDeviceGetMinorNumber) \
    X(nvmlDeviceGetPciInfo_v3) X(nvmlDeviceGetArchitecture) X(nvmlDeviceGetCudaComputeCapability) \
    X(nvmlDeviceGetMemoryBusWidth) X(nvmlDeviceGetMaxClockInfo) X(nvmlDeviceGetClockInfo) \
    X(nvmlDeviceGetTemperatureThreshold) X(nvmlDeviceGetEnforcedPowerLimit) \
    X(nvmlDeviceGetUtilizationRates) X(nvmlDeviceGetSamples) X(nvmlDeviceGetMemoryInfo) \
    X(nvmlDeviceGetMemoryInfo_v2) X(nvmlDeviceGetTemperature) X(nvmlDeviceGetTemperatureV) \
    X(nvmlDeviceGetPowerUsage) X(nvmlDeviceGetTotalEnergyConsumption) \
    X(nvmlDeviceGetCurrentClocksEventReasons) X(nvmlDeviceGetCurrentClocksThrottleReasons) \
    X(nvmlDeviceGetFieldValues) X(nvmlDeviceGetPcieThroughput) \
    X(nvmlDeviceGetComputeRunningProcesses_v3) X(nvmlDeviceGetGraphicsRunningProcesses_v3) \
    X(nvmlDeviceGetMigMode) X(nvmlDeviceGetMaxMigDeviceCount) X(nvmlDeviceGetMigDeviceHandleByIndex) \
    X(nvmlDeviceGetDeviceHandleFromMigDeviceHandle) X(nvmlDeviceIsMigDeviceHandle) \
    X(nvmlDeviceGetGpuInstanceId) X(nvmlDeviceGetComputeInstanceId) X(nvmlGpmQueryDeviceSupport) \
    X(nvmlGpmSampleAlloc) X(nvmlGpmSampleFree) X(nvmlGpmSampleGet) X(nvmlGpmMigSampleGet) \
    X(nvmlGpmMetricsGet)

#define X(name) F_##name,
enum function { FUNCTIONS(X) FUNCTION_COUNT, ANY_FUNCTION };
#undef X

#define NO_PART (-1)

enum { MAX_GPUS = 16, MAX_MIGS = 8, MAX_PROCESSES = 16, MAX_RULES = 128, TEXT_SIZE = 96 };

struct point {
    int64_t at_ns;
    double value[KEYS];
    double sum[KEYS]; /* integral over seconds up to this point */
};

struct process {
    unsigned pid;
    uint64_t memory;
};

/* A GPU, or a MIG instance of one. A handle is the address of such a record. */
struct device {
    bool present;
    struct device *parent; /* of a MIG instance */
    unsigned index;        /* the driver's own, or the slot of a MIG instance */
    char name[TEXT_SIZE], uuid[TEXT_SIZE], bus[TEXT_SIZE];
    uint64_t memory, reserved;
    unsigned bus_width, max_sm, max_mem, arch, major, minor, power_limit, slowdown, shutdown;
    unsigned gpm, mig, mig_max, mig_parent_util, instance, compute_instance;
    int64_t power_mean, energy_reset;
    double energy_base, energy_scale;
    struct process processes[MAX_PROCESSES];
    int process_count;
    struct point *points;
    int point_count, point_room;
};

/* An error or a value that a function gives between two moments, instead of the right one. */
struct rule {
    enum function function;
    int part; /* a field, metric, clock or sample type; NO_PART for the function itself */
    const struct device *device;
    bool is_value;
    int code;
    double value;
    int64_t from_ns, to_ns;
};

struct sim {
    struct device devices[MAX_GPUS * (1 + MAX_MIGS)]; /* a GPU, then its MIG slots, then the next GPU */
    struct rule rules[MAX_RULES];
    int rule_count;
    int64_t latency_us[FUNCTION_COUNT];
    uint64_t calls[FUNCTION_COUNT];
    char driver[TEXT_SIZE];
    unsigned cuda, virtual_clock, sample_hz, sample_buffer, sample_idle, sample_ring, stamps_epoch;
    int64_t util_ns, gpm_ns, energy_ns, stamp_base_ns;
    int64_t virtual_ns, origin_ns;
    int references;
    bool loaded;
};

extern struct sim sim;

/* timeline.c */
double value_at(const struct device *device, enum key key, int64_t at_ns);
double integral(const struct device *device, enum key key, int64_t to_ns);
double mean(const struct device *device, enum key key, int64_t from_ns, int64_t to_ns);
const char *append_point(struct device *device, int64_t at_ns, const double *value, const bool *given);

/* scenario.c */
const char *load_line(char *line);
const char *load_text(const char *text);
void forget(void);
enum function function_named(const char *name);

/* library.c */
int64_t now_ns(void);
int enter(enum function function, const struct device *device, bool takes_device);
void leave(void);
int injected(enum function function, int part, const struct device *device);
double altered(enum function function, int part, const struct device *device, int64_t at_ns, double value);
struct device *gpu_at(unsigned position);

/* An exported function whose body runs under the lock, once the call was counted and not made to fail. */
#define API(name, device, takes_device, params, args) \
    static int name##_body params; \
    EXPORT int name params; \
    EXPORT int name params \
    { \
        int code = enter(F_##name, device, takes_device); \
        if (code == OK) { \
            code = name##_body args; \
            leave(); \
        } \
        return code; \
    } \
    static int name##_body params

#define DEVICE_API(name, params, args) API(name, device, true, params, args)
#define SYSTEM_API(name, params, args) API(name, NULL, false, params, args)

#define RETURN_IF(condition, code) \
    do { \
        if (condition) \
            return code; \
    } while (0)

#endif
