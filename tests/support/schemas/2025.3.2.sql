-- The tables perfmodel reads, as Nsight Systems 2025.3.2 exports them (schema 3.20.3).
-- Columns from a report of two H200s. It had no CUDA graphs and no point-to-point MPI calls: those
-- tables (CUPTI_ACTIVITY_KIND_GRAPH_TRACE, CUDA_GRAPH_EVENTS, CUDA_GRAPH_NODE_EVENTS,
-- MPI_P2P_EVENTS, MPI_START_WAIT_EVENTS) are those of 2024.2.3.

-- Always there.
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE META_DATA_EXPORT (name TEXT NOT NULL, value TEXT);
CREATE TABLE ANALYSIS_DETAILS (
    globalVid INTEGER NOT NULL, duration INTEGER NOT NULL, startTime INTEGER NOT NULL,
    stopTime INTEGER NOT NULL
);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT, localTime TEXT);
CREATE TABLE PROCESSES (globalPid INTEGER, pid INTEGER, name TEXT);
CREATE TABLE ThreadNames (nameId INTEGER NOT NULL, priority INTEGER, globalTid INTEGER);

-- NVTX.
CREATE TABLE SCHED_EVENTS (
    start INTEGER NOT NULL, cpu INTEGER NOT NULL, isSchedIn INTEGER NOT NULL, globalTid INTEGER,
    threadState INTEGER, threadBlock INTEGER
);
CREATE TABLE NVTX_EVENTS (
    start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER,
    category INTEGER, color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER,
    textId INTEGER, domainId INTEGER, uint64Value INTEGER, int64Value INTEGER, doubleValue REAL,
    uint32Value INTEGER, int32Value INTEGER, floatValue REAL, jsonTextId INTEGER, jsonText TEXT,
    binaryData TEXT
);

-- CUDA.
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (
    start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL, globalTid INTEGER,
    correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL,
    callchainId INTEGER
);
CREATE TABLE CUDA_CALLCHAINS (
    id INTEGER NOT NULL, symbol INTEGER, module INTEGER, kernelMode INTEGER, thumbCode INTEGER,
    unresolved INTEGER, specifiesReturnAddress INTEGER, unwindMethod INTEGER, originalIP INTEGER,
    stackDepth INTEGER NOT NULL
);
CREATE TABLE SAMPLING_CALLCHAINS (
    id INTEGER NOT NULL, symbol INTEGER, module INTEGER, kernelMode INTEGER, thumbCode INTEGER,
    unresolved INTEGER, specifiesReturnAddress INTEGER, unwindMethod INTEGER, originalIP INTEGER,
    stackDepth INTEGER NOT NULL
);
CREATE TABLE COMPOSITE_EVENTS (
    id INTEGER NOT NULL PRIMARY KEY, start INTEGER NOT NULL, cpu INTEGER, threadState INTEGER,
    globalTid INTEGER, cpuCycles INTEGER NOT NULL
);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (
    start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL,
    correlationId INTEGER, globalPid INTEGER, demangledName INTEGER NOT NULL,
    shortName INTEGER NOT NULL, mangledName INTEGER, launchType INTEGER, cacheConfig INTEGER,
    registersPerThread INTEGER NOT NULL, gridX INTEGER NOT NULL, gridY INTEGER NOT NULL,
    gridZ INTEGER NOT NULL, blockX INTEGER NOT NULL, blockY INTEGER NOT NULL,
    blockZ INTEGER NOT NULL, staticSharedMemory INTEGER NOT NULL,
    dynamicSharedMemory INTEGER NOT NULL, localMemoryPerThread INTEGER NOT NULL,
    localMemoryTotal INTEGER NOT NULL, gridId INTEGER NOT NULL, sharedMemoryExecuted INTEGER,
    graphNodeId INTEGER, sharedMemoryLimitConfig INTEGER
);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (
    start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL,
    correlationId INTEGER, globalPid INTEGER, bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL,
    deprecatedSrcId INTEGER, srcKind INTEGER, dstKind INTEGER, srcDeviceId INTEGER,
    srcContextId INTEGER, dstDeviceId INTEGER, dstContextId INTEGER, migrationCause INTEGER,
    graphNodeId INTEGER, virtualAddress INTEGER, copyCount INTEGER
);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (
    start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL,
    correlationId INTEGER, globalPid INTEGER, value INTEGER NOT NULL, bytes INTEGER NOT NULL,
    graphNodeId INTEGER, memKind INTEGER
);
CREATE TABLE CUPTI_ACTIVITY_KIND_SYNCHRONIZATION (
    start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL,
    correlationId INTEGER, globalPid INTEGER, deprecatedSyncType INTEGER,
    syncType INTEGER NOT NULL, eventId INTEGER NOT NULL, eventSyncId INTEGER
);
CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (
    start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL,
    correlationId INTEGER, globalPid INTEGER, graphId INTEGER NOT NULL,
    graphExecId INTEGER NOT NULL
);
CREATE TABLE CUDA_GRAPH_EVENTS (
    start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL, globalTid INTEGER,
    nameId INTEGER NOT NULL, graphId INTEGER, originalGraphId INTEGER, graphExecId INTEGER
);
CREATE TABLE CUDA_GRAPH_NODE_EVENTS (
    start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL, globalTid INTEGER,
    nameId INTEGER NOT NULL, graphNodeId INTEGER NOT NULL, originalGraphNodeId INTEGER
);
-- With --cuda-memory-usage=true and --gpu-metrics-devices=all; columns as of 2024.6.
CREATE TABLE CUDA_GPU_MEMORY_USAGE_EVENTS (
    start INTEGER NOT NULL, globalPid INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, address INTEGER NOT NULL, pc INTEGER NOT NULL,
    bytes INTEGER NOT NULL, memKind INTEGER NOT NULL, memoryOperationType INTEGER NOT NULL,
    name TEXT, correlationId INTEGER, streamId INTEGER, localMemoryPoolAddress INTEGER,
    localMemoryPoolReleaseThreshold INTEGER, localMemoryPoolSize INTEGER,
    localMemoryPoolUtilizedSize INTEGER, importedMemoryPoolAddress INTEGER,
    importedMemoryPoolProcessId INTEGER
);
CREATE TABLE TARGET_INFO_GPU_METRICS (
    typeId INTEGER NOT NULL, sourceId INTEGER NOT NULL, typeName TEXT NOT NULL,
    metricId INTEGER NOT NULL, metricName TEXT NOT NULL
);
CREATE TABLE GPU_METRICS (
    rawTimestamp INTEGER, timestamp INTEGER, typeId INTEGER NOT NULL, metricId INTEGER NOT NULL,
    value INTEGER NOT NULL
);

CREATE TABLE TARGET_INFO_GPU (
    vmId INTEGER NOT NULL, id INTEGER NOT NULL, name TEXT, busLocation TEXT, isDiscrete INTEGER,
    l2CacheSize INTEGER, totalMemory INTEGER, memoryBandwidth INTEGER, clockRate INTEGER,
    smCount INTEGER, pwGpuId INTEGER, uuid TEXT, luid INTEGER, chipName TEXT, cuDevice INTEGER,
    ctxswDevPath TEXT, ctrlDevPath TEXT, revision INTEGER, nodeMask INTEGER,
    constantMemory INTEGER, maxIPC INTEGER, maxRegistersPerBlock INTEGER, maxShmemPerBlock INTEGER,
    maxShmemPerBlockOptin INTEGER, maxShmemPerSm INTEGER, maxRegistersPerSm INTEGER,
    threadsPerWarp INTEGER, asyncEngines INTEGER, maxWarpsPerSm INTEGER, maxBlocksPerSm INTEGER,
    maxThreadsPerBlock INTEGER, maxBlockDimX INTEGER, maxBlockDimY INTEGER, maxBlockDimZ INTEGER,
    maxGridDimX INTEGER, maxGridDimY INTEGER, maxGridDimZ INTEGER, computeMajor INTEGER,
    computeMinor INTEGER, smMajor INTEGER, smMinor INTEGER
);
CREATE TABLE TARGET_INFO_CUDA_DEVICE (gpuId INTEGER, cudaId INTEGER NOT NULL, pid INTEGER NOT NULL);

-- MPI.
CREATE TABLE MPI_P2P_EVENTS (
    start INTEGER NOT NULL, end INTEGER, globalTid INTEGER, textId INTEGER, commHandle INTEGER,
    tag INTEGER, remoteRank INTEGER, size INTEGER, requestHandle INTEGER
);
CREATE TABLE MPI_START_WAIT_EVENTS (
    start INTEGER NOT NULL, end INTEGER, globalTid INTEGER, textId INTEGER, requestHandle INTEGER
);
CREATE TABLE MPI_OTHER_EVENTS (
    start INTEGER NOT NULL, end INTEGER, globalTid INTEGER, textId INTEGER
);
CREATE TABLE MPI_COLLECTIVES_EVENTS (
    start INTEGER NOT NULL, end INTEGER, globalTid INTEGER, textId INTEGER, commHandle INTEGER,
    rootRank INTEGER, size INTEGER, recvSize INTEGER, requestHandle INTEGER
);
CREATE TABLE MPI_RANKS (globalTid INTEGER NOT NULL, rank INTEGER NOT NULL);
CREATE TABLE MPI_COMMUNICATORS (
    rank INTEGER, timestamp INTEGER, commHandle INTEGER, parentHandle INTEGER, localRank INTEGER,
    size INTEGER, groupRoot INTEGER, groupRootUid INTEGER, members TEXT
);

-- Collection.
CREATE TABLE DIAGNOSTIC_EVENT (
    timestamp INTEGER NOT NULL, timestampType INTEGER NOT NULL, source INTEGER NOT NULL,
    severity INTEGER NOT NULL, text TEXT NOT NULL, globalPid INTEGER
);

-- Enumerations; of the event types, those of NVTX and CUDA.
CREATE TABLE ENUM_CUDA_MEMCPY_OPER (id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT);
INSERT INTO ENUM_CUDA_MEMCPY_OPER VALUES
    (0, 'CUDA_MEMCPY_KIND_UNKNOWN', 'Unknown'), (1, 'CUDA_MEMCPY_KIND_HTOD', 'Host-to-Device'),
    (2, 'CUDA_MEMCPY_KIND_DTOH', 'Device-to-Host'), (3, 'CUDA_MEMCPY_KIND_HTOA', 'Host-to-Array'),
    (4, 'CUDA_MEMCPY_KIND_ATOH', 'Array-to-Host'), (5, 'CUDA_MEMCPY_KIND_ATOA', 'Array-to-Array'),
    (6, 'CUDA_MEMCPY_KIND_ATOD', 'Array-to-Device'),
    (7, 'CUDA_MEMCPY_KIND_DTOA', 'Device-to-Array'),
    (8, 'CUDA_MEMCPY_KIND_DTOD', 'Device-to-Device'), (9, 'CUDA_MEMCPY_KIND_HTOH', 'Host-to-Host'),
    (10, 'CUDA_MEMCPY_KIND_PTOP', 'Peer-to-Peer'),
    (11, 'CUDA_MEMCPY_KIND_UVM_HTOD', 'Unified Host-to-Device'),
    (12, 'CUDA_MEMCPY_KIND_UVM_DTOH', 'Unified Device-to-Host'),
    (13, 'CUDA_MEMCPY_KIND_UVM_DTOD', 'Unified Device-to-Device');
CREATE TABLE ENUM_CUDA_MEM_KIND (id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT);
INSERT INTO ENUM_CUDA_MEM_KIND VALUES
    (0, 'CUDA_MEMOPR_MEMORY_KIND_PAGEABLE', 'Pageable'),
    (1, 'CUDA_MEMOPR_MEMORY_KIND_PINNED', 'Pinned'),
    (2, 'CUDA_MEMOPR_MEMORY_KIND_DEVICE', 'Device'), (3, 'CUDA_MEMOPR_MEMORY_KIND_ARRAY', 'Array'),
    (4, 'CUDA_MEMOPR_MEMORY_KIND_MANAGED', 'Managed'),
    (5, 'CUDA_MEMOPR_MEMORY_KIND_DEVICE_STATIC', 'Device Static'),
    (6, 'CUDA_MEMOPR_MEMORY_KIND_MANAGED_STATIC', 'Managed Static'),
    (7, 'CUDA_MEMOPR_MEMORY_KIND_UNKNOWN', 'Unknown');
CREATE TABLE ENUM_NSYS_EVENT_TYPE (id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT);
INSERT INTO ENUM_NSYS_EVENT_TYPE VALUES
    (32, 'NvtxEvents', 'NvtxEvents'), (33, 'NvtxCategory', 'NvtxCategory'),
    (34, 'NvtxMark', 'NvtxMark'), (35, 'NvtxPushRange', 'NvtxPushRange'),
    (36, 'NvtxPopRange', 'NvtxPopRange'), (37, 'NvtxStartRange', 'NvtxStartRange'),
    (38, 'NvtxEndRange', 'NvtxEndRange'), (39, 'NvtxThread', 'NvtxThread'), (45, 'Cuda', 'Cuda'),
    (46, 'CudaDevice', 'CudaDevice'), (59, 'NvtxPushPopRange', 'NvtxPushPopRange'),
    (60, 'NvtxStartEndRange', 'NvtxStartEndRange'), (64, 'NvtxtCategory', 'NvtxtCategory'),
    (65, 'NvtxtMark', 'NvtxtMark'), (66, 'NvtxtPushRange', 'NvtxtPushRange'),
    (67, 'NvtxtPopRange', 'NvtxtPopRange'), (68, 'NvtxtStartRange', 'NvtxtStartRange'),
    (69, 'NvtxtEndRange', 'NvtxtEndRange'), (70, 'NvtxtPushPopRange', 'NvtxtPushPopRange'),
    (71, 'NvtxtStartEndRange', 'NvtxtStartEndRange'), (72, 'NvtxtMetaThread', 'NvtxtMetaThread'),
    (73, 'NvtxtMetaProcess', 'NvtxtMetaProcess'),
    (74, 'NvtxtMetaFileDisplay', 'NvtxtMetaFileDisplay'),
    (75, 'NvtxDomainCreate', 'NvtxDomainCreate'), (76, 'NvtxDomainDestroy', 'NvtxDomainDestroy'),
    (79, 'CudaDeviceKernel', 'CudaDeviceKernel'), (80, 'CudaDeviceMemory', 'CudaDeviceMemory'),
    (97, 'NvtxNameCudaDevice', 'NvtxNameCudaDevice'),
    (98, 'NvtxNameCudaContext', 'NvtxNameCudaContext'),
    (99, 'NvtxNameCudaStream', 'NvtxNameCudaStream'), (106, 'CudaSyncEvent', 'CudaSyncEvent'),
    (108, 'CudaBacktrace', 'CudaBacktrace'),
    (113, 'CudaGraphNodeCreation', 'CudaGraphNodeCreation'),
    (117, 'CudaDeviceMemoryUsage', 'CudaDeviceMemoryUsage'),
    (119, 'CudaUvmCpuPageFaultEvent', 'CudaUvmCpuPageFaultEvent'),
    (120, 'CudaUvmGpuPageFaultEvent', 'CudaUvmGpuPageFaultEvent'),
    (127, 'CudaEventRecord', 'CudaEventRecord'),
    (129, 'CudaDeviceMemoryPool', 'CudaDeviceMemoryPool'),
    (130, 'CudaDeviceGraph', 'CudaDeviceGraph'),
    (131, 'CudaGraphExecCreation', 'CudaGraphExecCreation'),
    (132, 'CudaGraphCreation', 'CudaGraphCreation'), (133, 'CudaGraphClone', 'CudaGraphClone'),
    (142, 'CudaDeviceMemcpy', 'CudaDeviceMemcpy'),
    (148, 'CudaConfidentialComputeKeyRotation', 'CudaConfidentialComputeKeyRotation'),
    (149, 'CudaGraphExecNodeSetParams', 'CudaGraphExecNodeSetParams');
CREATE TABLE ENUM_DIAGNOSTIC_SEVERITY_LEVEL (
    id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT
);
INSERT INTO ENUM_DIAGNOSTIC_SEVERITY_LEVEL VALUES
    (0, 'UnknownLevel', 'Unknown'), (1, 'Info', 'Info'), (2, 'Warning', 'Warning'),
    (3, 'Error', 'Error'), (4, 'Verbose', 'Verbose');

-- What exported it.
INSERT INTO META_DATA_EXPORT VALUES
    ('EXPORT_PRODUCT_NAME', 'NVIDIA Nsight Systems'), ('EXPORT_PRODUCT_VERSION', '2025.3.2.0'),
    ('EXPORT_PRODUCT_DATE', '2025.3'), ('EXPORT_SCHEMA_VERSION', '3.20.3'),
    ('EXPORT_SCHEMA_VERSION_MAJOR', '3'), ('EXPORT_SCHEMA_VERSION_MINOR', '20'),
    ('EXPORT_SCHEMA_VERSION_MICRO', '3'), ('EXPORT_PLATFORM', 'linux-desktop'),
    ('EXPORT_ARCH', 'x64');
